// The list of endpoints, from the OpenAPI description of the service.
import { get } from "./api.js";

function element(name, text) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  return made;
}

function typeName(schema = {}) {
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.anyOf) return schema.anyOf.map(typeName).filter((name) => name !== "null").join(" or ");
  if (schema.type === "array") return `list of ${typeName(schema.items)}`;
  return schema.type ?? "any";
}

function table(headings, rows) {
  const made = element("table");
  const head = made.createTHead().insertRow();
  for (const heading of headings) {
    const cell = element("th", heading);
    cell.scope = "col";
    head.append(cell);
  }
  const body = made.createTBody();
  for (const cells of rows) {
    const line = body.insertRow();
    for (const text of cells) line.insertCell().textContent = text;
  }
  const box = element("div");
  box.className = "wide";
  box.tabIndex = 0;
  box.append(made);
  return box;
}

function fields(schema, all) {
  const whole = schema.$ref ? all[schema.$ref.split("/").pop()] : schema;
  return Object.entries(whole?.properties ?? {}).map(([name, one]) => [
    name, typeName(one), whole.required?.includes(name) ? "yes" : "no", one.description ?? "",
  ]);
}

const EXAMPLES = { within: "7d", search: "a", events: [{ src: "ada", dst: "tea", time: "2026-05-10T10:00:00Z" }],
  pairs: [{ src: "ada", dst: "tea" }], answer_id: "…", source: "ada", node: "ada" };

// A curl command with the required parameters.
function example(method, path, parameters, body) {
  const needed = parameters.filter((one) => one.required && one.in === "query");
  const query = needed.map((one) => `${one.name}=${EXAMPLES[one.name] ?? "…"}`).join("&");
  const url = location.origin + path.replace(/{(\w+)}/g, (_, name) => EXAMPLES[name] ?? name) + (query && `?${query}`);
  if (!body) return `curl '${url}'`;
  const values = body.filter(([, , required]) => required === "yes").map(([name]) => [name, EXAMPLES[name] ?? "…"]);
  return `curl --json '${JSON.stringify(Object.fromEntries(values))}' ${url}`;
}

function operation(method, path, about, schemas) {
  const made = element("section");
  made.append(element("h2", `${method.toUpperCase()} ${path}`));
  made.append(element("p", about.description ?? about.summary ?? ""));
  const parameters = (about.parameters ?? []).map((one) => [
    one.name, typeName(one.schema), one.required ? "yes" : "no", one.description ?? "",
  ]);
  const body = about.requestBody?.content?.["application/json"]?.schema;
  const rows = parameters.concat(body ? fields(body, schemas) : []);
  made.append(element("pre", example(method, path, about.parameters ?? [], body && fields(body, schemas))));
  if (rows.length) made.append(table([body ? "Field" : "Parameter", "Type", "Required", "Meaning"], rows));
  return made;
}

try {
  const api = await get("/openapi.json");
  for (const [path, operations] of Object.entries(api.paths)) {
    for (const [method, about] of Object.entries(operations)) {
      document.getElementById("list").append(operation(method, path, about, api.components?.schemas ?? {}));
    }
  }
} catch (error) {
  document.getElementById("error").textContent = error.message;
}
