// Requests to the service. The read token lives in the tab's session storage and goes out as a header only.
const KEY = "cordgt-read-token";

export class TokenNeeded extends Error {
  constructor(message, token) {
    super(message);
    this.token = token; // that was refused; null if none was sent
  }
}

export function setToken(token) {
  if (token) sessionStorage.setItem(KEY, token);
  else sessionStorage.removeItem(KEY);
}

export function getToken() {
  return sessionStorage.getItem(KEY);
}

// Whole numbers beyond 2^53 stay text, because a JavaScript number would round such an id.
function keepExact(key, value, context) {
  const isRounded = typeof value === "number" && Number.isInteger(value) && !Number.isSafeInteger(value);
  return isRounded && context && context.source ? context.source : value;
}

export async function get(path, parameters = {}) {
  const url = new URL(path, location.origin);
  for (const [name, value] of Object.entries(parameters)) {
    if (value !== null && value !== undefined) url.searchParams.set(name, value);
  }
  const token = getToken();
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const response = await fetch(url, { headers, cache: "no-store", credentials: "omit" });
  const text = await response.text();
  let body = {};
  try {
    body = JSON.parse(text, keepExact);
  } catch {
    body = { error: `The service answered ${response.status} without JSON.` };
  }
  if (response.status === 401 || (response.status === 403 && token)) throw new TokenNeeded(body.error, token);
  if (!response.ok) throw new Error(body.error || `The service answered ${response.status}.`);
  return body;
}
