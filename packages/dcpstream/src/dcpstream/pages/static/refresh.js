// Loads the page again and again, replaces what changed, and says so when its server is gone.
import { morph } from "./morph.js";
import { PING, SERVER } from "./server.js";

const PAUSE_MS = 2000;
const FIRST_PAUSE_MS = 500; // rates need a second look
const ADDRESS = location.origin + location.pathname + location.search; // without a login that stood in the address
const MARK = "\u26A0 ";

let decorate = () => {};
let lastAnswer = new Date();

function report(problem) {
  const place = document.getElementById("gone");
  document.body.classList.toggle("stale", problem !== "");
  document.title = problem ? MARK + document.title.replace(MARK, "") : document.title.replace(MARK, "");
  if (problem && place.hidden) place.textContent = `${problem} The figures are of ${lastAnswer.toLocaleTimeString()}.`;
  place.hidden = problem === "";
}

function problemOf(answer) {
  if (answer.ok || answer.status === 404) return "";
  if (answer.status === 401) return `${SERVER} no longer accepts your login.`;
  return `${SERVER} cannot show this page now (status ${answer.status}).`;
}

// Loads the page once and shows it; the promise holds whether the server answered.
export async function reload() {
  const isStill = document.getElementById("main").hasAttribute("data-still");
  try {
    const answer = await fetch(isStill ? PING : ADDRESS, { cache: "no-store" });
    const text = await answer.text();
    const problem = problemOf(answer);
    if (!problem) lastAnswer = new Date();
    if (!problem && !isStill) show(new DOMParser().parseFromString(text, "text/html"));
    report(problem);
    return true;
  } catch {
    report(`${SERVER} does not answer.`);
    return false;
  }
}

function show(page) {
  const content = page.getElementById("main");
  if (!content) return;
  decorate(content);
  morph(document.getElementById("main"), content);
  document.title = page.title;
}

async function again() {
  if (!document.hidden) await reload();
  setTimeout(again, PAUSE_MS);
}

export function keepFresh(decorateContent) {
  decorate = decorateContent;
  setTimeout(again, FIRST_PAUSE_MS);
}
