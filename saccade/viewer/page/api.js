// Requests to the server; in a saved file the answers are in the page, and nothing is fetched.

const GETS = /^(status|roles|lenses|runs(\/.+)?|traces(\/.+)?|atlas(\/.+)?)$/;
const CACHED = 256; // answers in the cache; head cards are small
const DEFAULTS = { position: -1, top: [5, 10], first: 0, count: 32, ablate: "mean", say: 0, index: 0, temperature: 0, seed: 0 };
const answers = new Map();
const inlined = readInlined();
const questionsOf = {}; // by screen, the questions that it was drawn from
let currentScreen = "";

class ApiError extends Error {
  constructor({ error, hint = "" }, status) {
    super(error);
    this.hint = hint;
    this.status = status;
  }
}

function readInlined() {
  const found = document.getElementById("saccade-data");
  return found ? JSON.parse(found.textContent) : null;
}

export function isOffline() {
  return inlined !== null;
}

export function inlinedState() {
  return inlined?.state ?? null;
}

// A question without defaults, its keys sorted: equal questions give equal text.
function plainQuestion(question) {
  const isGiven = ([key, value]) =>
    value !== null &&
    value !== undefined &&
    value !== "" &&
    !(Array.isArray(value) && !value.length) &&
    ![DEFAULTS[key]].flat().includes(value);
  return JSON.stringify(
    Object.fromEntries(Object.entries(question).filter(isGiven).sort()),
    inOrder,
  );
}

function inOrder(_key, value) {
  return value && typeof value === "object" && !Array.isArray(value)
    ? Object.fromEntries(Object.entries(value).sort())
    : value;
}

function withoutEmpty(question) {
  return Object.fromEntries(
    Object.entries(question).filter(
      ([, value]) =>
        value !== null &&
        value !== undefined &&
        value !== "" &&
        !(Array.isArray(value) && !value.length),
    ),
  );
}

export function request(route, question = {}) {
  const sent = withoutEmpty(question),
    key = `${route} ${plainQuestion(sent)}`;
  remember(route, sent, key);
  if (answers.has(key)) return answers.get(key);
  const promise = inlined ? fromFile(route, sent) : fromServer(route, sent);
  if (route === "status" || route === "runs" || route === "traces") return promise; // these change
  answers.set(key, promise);
  promise.catch(() => answers.delete(key));
  if (answers.size > CACHED) answers.delete(answers.keys().next().value);
  return promise;
}

export function hasAnswer(route, question) {
  const wanted = plainQuestion(question);
  return (
    !inlined ||
    inlined.answers.some((each) => each.route === route && plainQuestion(each.question) === wanted)
  );
}

// A site of several files: the file of a head, that of all heads, the names of all heads; null elsewhere.
export function headFile(name) {
  return inlined?.site?.names.includes(name) ? inlined.site.head.replace("NAME", name) : null;
}

export function siteFile() {
  return inlined?.site?.overview ?? null;
}

export function siteNames() {
  return inlined?.site?.names ?? null;
}

// Whether there is any answer of one of these routes: a file has some screens only.
export function hasRoute(...routes) {
  return !inlined || inlined.answers.some(({ route }) => routes.includes(route.split("/")[0]));
}

async function fromFile(route, question) {
  const wanted = plainQuestion(question);
  const found = inlined.answers.find(
    (each) => each.route === route && plainQuestion(each.question) === wanted,
  );
  if (!found)
    throw new ApiError(
      {
        error: "this file does not have that answer",
        hint: "`saccade view` answers every question",
      },
      404,
    );
  return found.answer;
}

async function fromServer(route, question, tries = 8) {
  const isGet = GETS.test(route);
  const path = `/api/${route.split("/").map(encodeURIComponent).join("/")}`;
  const reply = await sent(
    path,
    isGet
      ? {}
      : {
          method: "POST",
          headers: { "Content-Type": "application/json" },
          body: JSON.stringify(question),
        },
  );
  if (reply.ok) return reply.json();
  if (reply.status === 503 && tries > 0) {
    await delay(1000 * Number(reply.headers.get("Retry-After") ?? 1));
    const { state } = await fromServer("status", {}, 0);
    return fromServer(route, question, state === "opening" ? tries : tries - 1); // a model may take minutes to open
  }
  throw new ApiError(
    await reply.json().catch(() => ({ error: `the server answered ${reply.status}` })),
    reply.status,
  );
}

async function sent(path, options) {
  try {
    return await fetch(path, { credentials: "same-origin", ...options });
  } catch {
    throw new ApiError(
      { error: "the server does not answer", hint: "is `saccade view` still running?" },
      0,
    );
  }
}

// A file from the server.
export async function requestFile(route, question) {
  const reply = await sent(`/api/${route}`, {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(withoutEmpty(question)),
  });
  if (reply.ok) return reply.blob();
  throw new ApiError(
    await reply.json().catch(() => ({ error: `the server answered ${reply.status}` })),
    reply.status,
  );
}

export function delay(milliseconds) {
  return new Promise((resolve) => setTimeout(resolve, milliseconds));
}

function remember(route, question, key) {
  if (route === "status") return;
  questionsOf[currentScreen] ??= new Map();
  questionsOf[currentScreen].delete(key); // the latest question is last
  questionsOf[currentScreen].set(key, { route, question });
}

export function setScreen(screen) {
  currentScreen = screen;
}

// The questions of the current screen, without those about earlier texts and edits.
export function questionsOnScreen({ text, other, changes, run, head }) {
  const isOf = ({ route, question }) =>
    (!route.startsWith("atlas/") || route === `atlas/${head}`) &&
    (question.text === undefined || question.text === text || question.text === other) &&
    (question.changes === undefined ||
      route === "act" ||
      JSON.stringify(question.changes) === changes) &&
    (question.run === undefined || question.run === run);
  return [...(questionsOf[currentScreen]?.values() ?? [])].filter(isOf);
}
