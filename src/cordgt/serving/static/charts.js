// Small charts in SVG. Arrow keys move a cursor over a chart, and its values appear below it as text.
const SVG = "http://www.w3.org/2000/svg";
const HEIGHT = 170, LEFT = 46, RIGHT = 10, TOP = 10, BOTTOM = 24;

function shape(name, attributes, parent) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (parent) parent.append(element);
  return element;
}

function label(svg, x, y, text, anchor) {
  shape("text", { x, y, "text-anchor": anchor }, svg).textContent = text;
}

// Label the first and the last point, if both texts have room.
function labelEnds(svg, width, [first, last]) {
  const hasRoom = 7 * (first.length + last.length) < width - LEFT - RIGHT;
  label(svg, LEFT, HEIGHT - 6, first, "start");
  if (hasRoom) label(svg, width - RIGHT, HEIGHT - 6, last, "end");
}

export function format(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  if (Number.isInteger(value)) return value.toLocaleString("en");
  return size >= 100 ? Math.round(value).toLocaleString("en") : size >= 1 ? value.toFixed(1) : value.toFixed(3);
}

// A tick of an axis, without needless zeros.
const tick = (value) => Number(value.toPrecision(3)).toLocaleString("en");

// Return a round number that is not below the value.
function roundUp(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 2.5, 5, 10].map((step) => step * power).find((step) => step >= value - 1e-12);
}

// The same for counts: half of it is a whole number too.
const roundUpCount = (value) => Math.max(2, 2 * Math.ceil(roundUp(Math.ceil(value / 2)) - 1e-9));

function frame(figure, top) {
  const width = Math.max(260, Math.round(figure.clientWidth || 480));
  const svg = shape("svg", { viewBox: `0 0 ${width} ${HEIGHT}`, "aria-hidden": "true" });
  const y = (value) => TOP + (1 - value / top) * (HEIGHT - TOP - BOTTOM);
  for (const value of [0, top / 2, top]) {
    shape("line", { x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value), class: value ? "grid" : "axis" }, svg);
    label(svg, LEFT - 6, y(value) + 4, tick(value), "end");
  }
  return { svg, width, y };
}

function legend(series) {
  const box = document.createElement("div");
  box.className = "legend";
  series.forEach(({ name }, i) => {
    const item = document.createElement("span");
    const key = shape("svg", { viewBox: "0 0 32 10", "aria-hidden": "true" });
    shape("line", { x1: 0, x2: 32, y1: 5, y2: 5, class: `line s${i}` }, key);
    item.append(key, name);
    box.append(item);
  });
  return box;
}

// Show the chart with its summary, and let the arrow keys, Home and End read single points.
function show(figure, parts, n, x, describe, summary) {
  const { svg, y, top } = parts;
  const caption = document.createElement("figcaption");
  caption.setAttribute("aria-live", "polite");
  const cursor = shape("line", { class: "cursor", y1: y(top), y2: y(0), visibility: "hidden" }, svg);
  const before = figure.chartPosition;
  let position = before === undefined || before >= n ? undefined : before;
  const update = () => {
    const isSet = position !== undefined;
    cursor.setAttribute("visibility", isSet ? "visible" : "hidden");
    if (isSet) for (const end of ["x1", "x2"]) cursor.setAttribute(end, x(position));
    caption.textContent = isSet ? describe(position) : summary;
    figure.chartPosition = position;
  };
  figure.onkeydown = (event) => {
    const last = n - 1;
    const current = position === undefined ? last + 1 : position;
    const moves = { ArrowLeft: current - 1, ArrowRight: current + 1, Home: 0, End: last };
    if (event.key === "Escape") position = undefined;
    else if (event.key in moves && n) position = Math.min(last, Math.max(0, moves[event.key]));
    else return;
    event.preventDefault();
    update();
  };
  figure.onpointermove = (event) => {
    if (!n || event.pointerType === "touch" && event.type !== "pointerdown") return;
    const box = svg.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * parts.width;
    let nearest = 0;
    for (let i = 1; i < n; i += 1) if (Math.abs(x(i) - at) < Math.abs(x(nearest) - at)) nearest = i;
    position = nearest;
    update();
  };
  figure.onpointerdown = figure.onpointermove;
  figure.onblur = figure.onpointerleave = () => {
    position = undefined;
    update();
  };
  update();
  figure.replaceChildren(...(parts.legend ? [parts.legend] : []), svg, caption);
}

// series: [{name, values}], values of one length, null where there is none; labels: text of each point.
export function lineChart(figure, options) {
  figure.redraw = () => lineChart(figure, options);
  const { series, labels, ends, top, summary } = options;
  const n = labels.length;
  const highest = Math.max(0, ...series.flatMap(({ values }) => values.filter((v) => v !== null)));
  const limit = top || roundUpCount(highest);
  const { svg, width, y } = frame(figure, limit);
  const x = (i) => LEFT + (n > 1 ? i / (n - 1) : 0.5) * (width - LEFT - RIGHT);
  series.forEach(({ values }, s) => {
    let path = "", isOpen = false;
    values.forEach((value, i) => {
      if (value !== null) path += `${isOpen ? "L" : "M"}${x(i).toFixed(1)} ${y(value).toFixed(1)}`;
      isOpen = value !== null;
    });
    if (path) shape("path", { d: n > 1 ? path : `${path}h.1`, class: `line s${s}`, "stroke-linecap": "round" }, svg);
  });
  if (n) labelEnds(svg, width, ends);
  const describe = (i) =>
    `${labels[i]}: ${series.map(({ name, values }) => `${name} ${format(values[i])}`).join(", ")}`;
  const parts = { svg, width, y, top: limit, legend: series.length > 1 ? legend(series) : null };
  show(figure, parts, n, x, describe, summary);
}

// Bars of counts along time. bins: [{count, label}].
export function barChart(figure, options) {
  figure.redraw = () => barChart(figure, options);
  const { bins, ends, summary } = options;
  const n = bins.length;
  const top = roundUpCount(Math.max(0, ...bins.map(({ count }) => count)));
  const { svg, width, y } = frame(figure, top);
  const step = (width - LEFT - RIGHT) / Math.max(n, 1);
  bins.forEach(({ count }, i) => {
    if (!count) return;
    const height = Math.max(2, y(0) - y(count));
    shape("rect", { class: "bar", x: LEFT + i * step, y: y(0) - height, width: Math.max(2, step * 0.85), height }, svg);
  });
  if (n) labelEnds(svg, width, ends);
  const x = (i) => LEFT + (i + 0.45) * step;
  show(figure, { svg, width, y, top }, n, x, (i) => `${bins[i].label}: ${format(bins[i].count)}`, summary);
}
