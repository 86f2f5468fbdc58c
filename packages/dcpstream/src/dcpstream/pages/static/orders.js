// Sends the forms that change something, asks before what cannot be taken back, and shows what the server answered.
//
// <form class="order" action="/controller/failOver" data-method="POST" data-sure="…?" data-done="…">
import { reload } from "./refresh.js";
import { SERVER } from "./server.js";

const SAID_MS = 8000;
let timer = 0;

function say(text, isGood) {
  const place = document.getElementById("said");
  place.hidden = false;
  place.className = isGood ? "good" : "bad";
  place.textContent = text;
  clearTimeout(timer);
  if (isGood) timer = setTimeout(() => (place.hidden = true), SAID_MS);
}

// The reason in an answer: text, or one of the shapes of JSON that the REST API has for errors.
function reasonOf(text) {
  try {
    const content = JSON.parse(text);
    if (typeof content === "string") return content;
    if (Array.isArray(content)) return content.join(" ");
    if (content.permissions) return `You lack the permission ${content.permissions.join(", ")}.`;
    const errors = content.errors ?? content;
    return Object.entries(errors)
      .map(([name, why]) => (name === "_" ? why : `${name}: ${why}`))
      .join(" ");
  } catch {
    return text.trim();
  }
}

function bodyOf(form, button) {
  const data = new FormData(form, button);
  const fields = new URLSearchParams();
  for (const [name, value] of data) {
    const isEmpty = value === "" && form.elements[name]?.dataset?.optional !== undefined;
    if (isEmpty) continue;
    // A list goes into one field, as the REST API has it.
    if (name === form.dataset.list && fields.get(name)) fields.set(name, `${fields.get(name)},${value}`);
    else fields.set(name, value);
  }
  return fields;
}

async function send(form, button) {
  const method = form.dataset.method ?? "POST";
  const action = location.origin + form.getAttribute("action");
  const options = { method, cache: "no-store" };
  if (method !== "DELETE") options.body = bodyOf(form, button);
  const answer = await fetch(action, options);
  return { isGood: answer.ok, text: await answer.text(), status: answer.status };
}

async function carryOut(form, button) {
  const buttons = form.querySelectorAll("button");
  buttons.forEach((each) => (each.disabled = true));
  say("Working…", true);
  clearTimeout(timer);
  try {
    const { isGood, text, status } = await send(form, button);
    say(isGood ? form.dataset.done : `${reasonOf(text) || `${SERVER} refused it.`} (status ${status})`, isGood);
    if (isGood && form.dataset.next) location.assign(location.origin + form.dataset.next);
  } catch {
    say(`${SERVER} does not answer; nothing is known of the order.`, false);
  } finally {
    buttons.forEach((each) => (each.disabled = false));
    button?.focus();
  }
  await reload();
}

export function takeOrders() {
  document.addEventListener("submit", (event) => {
    const form = event.target.closest("form.order");
    if (!form) return;
    event.preventDefault();
    if (!form.dataset.sure || confirm(form.dataset.sure)) carryOut(form, event.submitter);
  });
  // A form whose fields depend on a choice shows those of the choice.
  document.addEventListener("change", (event) => {
    const select = event.target.closest("select[data-shows]");
    if (select) showFields(select);
  });
  document.querySelectorAll("select[data-shows]").forEach(showFields);
}

function showFields(select) {
  const wanted = select.selectedOptions[0].dataset;
  const fields = new Set((wanted.fields ?? "").split(" "));
  const needed = new Set((wanted.needed ?? "").split(" "));
  for (const place of select.form.querySelectorAll("[data-field]")) {
    const isShown = fields.has(place.dataset.field);
    place.hidden = !isShown;
    for (const input of place.querySelectorAll("input, select")) {
      input.disabled = !isShown;
      input.required = needed.has(place.dataset.field);
    }
  }
  const about = select.form.querySelector("p[data-about]");
  if (about) about.textContent = wanted.about ?? "";
}
