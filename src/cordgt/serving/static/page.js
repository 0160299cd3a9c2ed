// The page of the service. Text from the data is set with textContent only, so it is never read as markup.
import { get, getToken, setToken, TokenNeeded } from "./api.js";
import { barChart, format, lineChart } from "./charts.js";

const SECONDS_BETWEEN_UPDATES = 3;
const byId = (id) => document.getElementById(id);

function element(name, text, className) {
  const made = document.createElement(name);
  if (text !== undefined && text !== null) made.textContent = String(text);
  if (className) made.className = className;
  return made;
}

const MAX_ID_LENGTH = 80; // characters that a table or list shows

// A user's id: isolated, so that right-to-left text in it cannot reorder the text around it.
function idElement(id) {
  const text = String(id);
  const made = element("bdi", text.length > MAX_ID_LENGTH ? `${text.slice(0, MAX_ID_LENGTH - 1)}…` : text, "id");
  made.title = text;
  return made;
}

// The date of "1396640000 (2014-04-04 19:33 UTC)" and of "2014-04-04T19:33:20Z"; other times as they are.
function shortTime(text) {
  const inner = /\((.*) UTC\)$/.exec(text);
  if (inner) return inner[1];
  return /^\d{4}-\d\d-\d\dT/.test(text) ? text.slice(0, 19).replace("T", " ") : text;
}

function nodeButton(node, side) {
  const button = element("button", null, "link");
  button.type = "button";
  button.append(idElement(node));
  button.addEventListener("click", () => openNode(node, side));
  return button;
}

function row(...cells) {
  const made = element("tr");
  cells.forEach((cell) => {
    const box = element("td");
    if (typeof cell === "number") box.className = "number";
    box.append(typeof cell === "number" ? format(cell) : cell === null || cell === undefined ? "" : cell);
    made.append(box);
  });
  return made;
}

function timeElement(text) {
  const made = element("span", shortTime(text), "time");
  made.title = text;
  return made;
}

function fill(table, rows) {
  byId(table).tBodies[0].replaceChildren(...rows);
}

function setState(text, kind) {
  const state = byId("state");
  if (state.textContent !== text) state.textContent = text; // a screen reader reads changes only
  state.className = `state ${kind}`;
}

function card(name, value) {
  const made = element("div", null, "card");
  made.append(element("dt", name), element("dd", value));
  return made;
}

// --- the stream ---

function showStatus(status) {
  const last = status.last_time === null ? "–" : shortTime(status.last_time);
  byId("model").textContent = `Model ${status.model}, last event at ${last}`;
  showHorizons(status.horizons ?? []);
  byId("cut").textContent = format(status.cut);
  byId("nodes").textContent = format(status.nodes);
  const counts = status.events_per_second;
  const minute = counts.slice(-60);
  const rate = minute.reduce((sum, n) => sum + n, 0) / Math.max(1, minute.length);
  byId("rate").textContent = format(rate);
  const n = counts.length;
  lineChart(byId("rate-chart"), {
    series: [{ name: "events", values: counts }],
    labels: counts.map((_, i) => `${n - i} s ago`),
    ends: [`${n} s ago`, "now"],
    summary: `Events per second over the last ${n} seconds. Highest: ${format(Math.max(0, ...counts))}.`,
  });
}

// Names of the curves. An event is compared with random partners, or with popular ones, which is harder.
const METRICS = { ap: "AP, random", ap_popular: "AP, popular", mrr: "MRR, random" };

function showQuality(quality) {
  const points = quality.points ?? [];
  const names = Object.keys(METRICS).filter((key) => points.some((point) => typeof point[key] === "number"));
  const last = points[points.length - 1] ?? {};
  byId("quality-cards").replaceChildren(...names.map((key) => card(METRICS[key], last[key]?.toFixed(3) ?? "–")));
  const labels = points.map((point) => `after ${format(point.cut)} events`);
  lineChart(byId("quality-chart"), {
    series: names.map((key) => ({ name: METRICS[key], values: points.map((point) => point[key] ?? null) })),
    labels,
    ends: points.length ? [labels[0], labels[labels.length - 1]] : ["", ""],
    top: 1,
    summary: points.length
      ? `Over the last ${format(Math.min(quality.window, quality.scored))} scored events.`
      : "The curve begins after the first 50 events that arrive.",
  });
  const warning = byId("warning");
  if (warning.textContent !== (quality.warning ?? "")) warning.textContent = quality.warning ?? "";
  warning.hidden = !quality.warning;
}

function showMovers(answer) {
  byId("movers-note").textContent = answer.movers.length
    ? `Events of a node among the latest ${format(answer.window)} events, and among as many before them.`
    : "No node changed its number of events.";
  fill("movers", answer.movers.map(({ node, side, change, now, before }) => {
    const arrow = element("span", `${change > 0 ? "▲ +" : "▼ −"}${format(Math.abs(change))}`, change > 0 ? "up" : "down");
    return row(nodeButton(node, side), arrow, now, before);
  }));
}

// --- a node ---

let opened = null, hasLoaded = false;

// Offer the horizons of the model; at first the middle one is chosen.
function showHorizons(horizons) {
  const select = byId("horizon"), text = JSON.stringify(horizons);
  if (select.dataset.shown === text) return;
  select.dataset.shown = text;
  const options = horizons.map(({ within, label }) => new Option(`within ${label}`, within));
  select.replaceChildren(...options, new Option("no time: show scores", ""));
  select.selectedIndex = Math.floor(horizons.length / 2);
  byId("horizon-choice").hidden = !horizons.length;
}

// An answer, or null if the model cannot give it.
async function getOrNull(path, parameters) {
  try {
    return await get(path, parameters);
  } catch (error) {
    if (error instanceof TokenNeeded || error instanceof TypeError) throw error;
    return null;
  }
}

function openNode(node, side) {
  const hash = new URLSearchParams({ node: String(node), ...(side ? { side } : {}) });
  const target = `#${hash}`;
  if (location.hash === target) showFromAddress();
  else location.hash = target; // the browser's Back button returns to the node before
}

// Show the node of the address. isSame: the node is on the page already; the focus stays.
async function showFromAddress(isSame = false) {
  const address = new URLSearchParams(location.hash.slice(1));
  const node = address.get("node");
  if (node === null) {
    byId("node").hidden = true;
    opened = null;
    return;
  }
  opened = { node, side: address.get("side") };
  byId("node-id").textContent = node;
  byId("search-input").value = node;
  closeResults();
  await guarded(async () => {
    const request = opened;
    const isSource = opened.side !== "dst", within = byId("horizon").value || null;
    const [past, answer, next] = await Promise.all([
      get("/history", { node, side: opened.side, n: 100 }),
      isSource ? get("/recommend", { source: node, n: 10, within }) : null,
      isSource && !byId("horizon-choice").hidden ? getOrNull(`/next/${encodeURIComponent(node)}`, { n: 1 }) : null,
    ]);
    if (request !== opened) return; // the reader has opened another node meanwhile
    byId("node").hidden = false; // before the chart is drawn, which needs its width
    showPast(past);
    showPartners(answer, past);
    showNext(next, past);
    if (hasLoaded && !isSame) {
      byId("node-title").focus({ preventScroll: true });
      byId("node-title").scrollIntoView({ block: "start" });
    }
  });
}

function showNext(next, past) {
  const isKnown = next !== null && next.median !== null && past.as_source > 0;
  const [median, low, high] = isKnown ? [next.median, next.low, next.high].map((time) => shortTime(String(time))) : [];
  byId("node-next").textContent = !isKnown ? ""
    : `Acts next at about ${median}. ${next.high === null ? "" : `With 80 % probability between ${low} and ${high}.`}`;
}

function partnersNote(answer, past) {
  if (!answer) return "This node is a destination. Recommendations are made for sources.";
  if (!answer.partners.length) return "There is no candidate.";
  return past.total && !past.as_source ? "So far this node is never a source. The list ranks its partners as if it were." : "";
}

function showPartners(answer, past) {
  const partners = answer ? answer.partners : [];
  byId("partners-note").textContent = partnersNote(answer, past);
  byId("note-name").textContent = partners.some(({ note }) => note) ? "Note" : "";
  const hasProbability = partners.some((partner) => typeof partner.probability === "number");
  byId("score-name").textContent = hasProbability ? "Probability" : "Score";
  fill("partners", partners.map((partner, i) => {
    const value = hasProbability ? partner.probability : partner.score;
    const score = element("span", typeof value === "number" ? value.toFixed(3) : "–", "score");
    if (typeof value === "number" && value >= 0 && value <= 1) {
      const meter = element("meter");
      Object.assign(meter, { min: 0, max: 1, value });
      meter.setAttribute("aria-hidden", "true");
      score.append(meter);
    }
    return row(i + 1, nodeButton(partner.node, answer.destination_side), score, partner.met ?? null, partner.note);
  }));
  byId("partners-answer").hidden = !answer;
  if (!answer) return;
  byId("partners-answer").querySelector("summary").textContent =
    `From the first ${format(answer.cut)} events. Id of this answer, for POST /replay`;
  byId("partners-answer").querySelector("code").textContent = answer.answer_id;
}

function showPast(past) {
  byId("node-facts").textContent = past.total
    ? `${format(past.total)} events, the first at ${shortTime(past.events_first)}, the last at ${shortTime(past.events_last)}.`
    : "This node has no events yet.";
  barChart(byId("past-chart"), {
    bins: past.bins.map(({ start, count }) => ({ count, label: `from ${shortTime(start)}` })),
    ends: past.bins.length ? [shortTime(past.bins[0].start), shortTime(past.end)] : ["", ""],
    summary: past.total ? `Number of events over time. The list has the latest ${format(past.events.length)}.` : "",
  });
  fill("past", past.events.map(({ time, direction, other, other_side }) =>
    row(timeElement(time), direction, nodeButton(other, other_side))));
}

// --- search ---

let found = [], selected = -1, searches = 0;

function closeResults() {
  found = [];
  selected = -1;
  byId("search-results").hidden = true;
  byId("search-input").setAttribute("aria-expanded", "false");
  byId("search-input").removeAttribute("aria-activedescendant");
}

function select(position) {
  const items = [...byId("search-results").children];
  selected = position;
  items.forEach((item, i) => item.setAttribute("aria-selected", String(i === position)));
  if (position < 0) return;
  byId("search-input").setAttribute("aria-activedescendant", items[position].id);
  items[position].scrollIntoView({ block: "nearest" });
}

async function search() {
  const text = byId("search-input").value;
  const number = ++searches;
  if (!text) {
    closeResults();
    byId("search-status").textContent = "";
    return;
  }
  await guarded(async () => {
    const answer = await get("/nodes", { search: text, n: 20 });
    if (number !== searches) return; // a later search is under way
    found = answer.nodes;
    byId("search-results").replaceChildren(...found.map(({ node, side, events }, i) => {
      const item = element("li");
      item.id = `found-${i}`;
      item.setAttribute("role", "option");
      const facts = `${side ? `${side === "src" ? "source" : "destination"}, ` : ""}${format(events)} events`;
      item.append(idElement(node), element("span", facts, "soft"));
      item.addEventListener("pointerdown", (event) => {
        event.preventDefault(); // keep the focus in the input until the click is done
      });
      item.addEventListener("click", () => openNode(node, side));
      return item;
    }));
    byId("search-results").hidden = !found.length;
    byId("search-input").setAttribute("aria-expanded", String(found.length > 0));
    byId("search-status").textContent = found.length
      ? `${found.length} nodes match. Use the arrow keys and Enter.` : "No node matches.";
    select(-1);
  });
}

function onSearchKey(event) {
  if (event.key === "Escape") closeResults();
  else if (event.key === "ArrowDown" && found.length) select((selected + 1) % found.length);
  else if (event.key === "ArrowUp" && found.length) select((selected - 1 + found.length) % found.length);
  else return;
  event.preventDefault();
}

function onSearchSubmit(event) {
  event.preventDefault();
  const text = byId("search-input").value;
  const chosen = found[selected] ?? found.find(({ node }) => String(node) === text);
  searches += 1; // answers to earlier searches no longer open the list
  if (chosen) openNode(chosen.node, chosen.side);
  else if (text) openNode(text, null);
}

// --- updates ---

async function guarded(work) {
  try {
    await work();
  } catch (error) {
    if (error instanceof TokenNeeded) askForToken(error);
    else setState(error instanceof TypeError ? "no connection" : error.message, "failed");
  }
}

function askForToken(error) {
  if (error.token !== getToken()) return; // a late answer: the reader has given another token meanwhile
  setToken(null);
  setState("token needed", "failed");
  byId("content").hidden = true;
  if (error.token !== null) byId("token-error").textContent = error.message;
  if (!byId("token-form").hidden) return;
  byId("token-form").hidden = false;
  byId("token-input").focus();
}

async function update() {
  await guarded(async () => {
    const [status, quality, movers] = await Promise.all([get("/status"), get("/quality"), get("/movers", { n: 10 })]);
    byId("content").hidden = false;
    byId("token-form").hidden = true;
    showStatus(status);
    showQuality(quality);
    // The table is rebuilt only if it changed, and never under the reader's focus.
    const text = JSON.stringify(movers);
    if (byId("movers").dataset.shown !== text && !byId("movers").contains(document.activeElement)) {
      showMovers(movers);
      byId("movers").dataset.shown = text;
    }
    setState("ready", "ready");
  });
}

function start() {
  let waiting = 0;
  byId("search-form").addEventListener("submit", onSearchSubmit);
  byId("search-input").addEventListener("keydown", onSearchKey);
  byId("search-input").addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(search, 150);
  });
  byId("token-form").addEventListener("submit", async (event) => {
    event.preventDefault();
    setToken(byId("token-input").value.trim());
    byId("token-input").value = "";
    byId("token-error").textContent = "";
    await update();
    if (getToken() !== null) await showFromAddress();
  });
  addEventListener("hashchange", () => showFromAddress());
  byId("horizon").addEventListener("change", () => showFromAddress(true));
  addEventListener("resize", () => document.querySelectorAll("figure").forEach((figure) => figure.redraw?.()));
  const loop = async () => {
    const isPaused = document.hidden || !byId("live").checked || !byId("token-form").hidden;
    if (!isPaused) await update();
    setTimeout(loop, 1000 * SECONDS_BETWEEN_UPDATES);
  };
  loop().then(() => showFromAddress()).then(() => { hasLoaded = true; });
}

start();
