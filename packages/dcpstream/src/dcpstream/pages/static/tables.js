// Sorts and filters tables. What people chose is kept by table, and applied to each new content before it is shown.

const ROWS_WORTH_A_FILTER = 6;
const chosen = new Map(); // id of a section → { column, isDown, filter }

function choiceOf(section) {
  if (!chosen.has(section.id)) chosen.set(section.id, { column: -1, isDown: false, filter: "" });
  return chosen.get(section.id);
}

function valueOf(row, column) {
  const cell = row.children[column];
  const value = cell.dataset.value ?? cell.textContent.trim();
  const number = Number(value);
  return value !== "" && !Number.isNaN(number) ? number : value;
}

function compare(one, other) {
  if (typeof one === "number" && typeof other === "number") return one - other;
  if (typeof one !== typeof other) return typeof one === "number" ? 1 : -1;
  return one.localeCompare(other, "en", { numeric: true });
}

function sort(section, choice) {
  if (choice.column < 0) return;
  const body = section.querySelector("tbody");
  const rows = [...body.rows].map((row, at) => ({ row, at, value: valueOf(row, choice.column) }));
  const sign = choice.isDown ? -1 : 1;
  rows.sort((one, other) => sign * compare(one.value, other.value) || one.at - other.at);
  body.append(...rows.map(({ row }) => row));
}

function filter(section, choice) {
  const words = choice.filter.toLowerCase().split(/\s+/).filter(Boolean);
  for (const row of section.querySelectorAll("tbody tr")) {
    const text = row.textContent.toLowerCase();
    row.hidden = !words.every((word) => text.includes(word));
  }
}

function decorateHeads(section, choice) {
  section.querySelectorAll("thead th").forEach((head, column) => {
    if ("plain" in head.dataset || !head.textContent) return;
    const isSorted = column === choice.column;
    head.setAttribute("aria-sort", isSorted ? (choice.isDown ? "descending" : "ascending") : "none");
    const button = document.createElement("button");
    button.type = "button";
    button.className = "sort";
    button.dataset.column = String(column);
    button.append(...head.childNodes);
    head.append(button);
  });
}

function decorateFilter(section, choice, rows) {
  if (rows < ROWS_WORTH_A_FILTER) return;
  const label = document.createElement("label");
  label.className = "filter";
  label.dataset.key = "filter";
  const input = document.createElement("input");
  input.type = "search";
  input.value = choice.filter;
  const name = document.createElement("span");
  name.className = "hidden";
  name.textContent = `Filter ${section.querySelector("h2").textContent}`;
  input.placeholder = "Filter";
  label.append(name, input);
  section.querySelector("h2").after(label);
}

export function decorateTables(content) {
  for (const table of content.querySelectorAll("section table")) {
    const section = table.closest("section"); // the innermost: a part of a page may have a table of its own
    const choice = choiceOf(section);
    decorateFilter(section, choice, table.tBodies[0].rows.length);
    decorateHeads(section, choice);
    sort(section, choice);
    filter(section, choice);
  }
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("button.sort");
  if (!button) return;
  const section = button.closest("section");
  const choice = choiceOf(section);
  const column = Number(button.dataset.column);
  const isNumber = button.parentElement.classList.contains("number");
  choice.isDown = choice.column === column ? !choice.isDown : isNumber; // the largest numbers first
  choice.column = column;
  sort(section, choice);
  section.querySelectorAll("thead th[aria-sort]").forEach((head) => {
    const isSorted = head.contains(button);
    head.setAttribute("aria-sort", isSorted ? (choice.isDown ? "descending" : "ascending") : "none");
  });
});

document.addEventListener("input", (event) => {
  const input = event.target.closest("label.filter input");
  if (!input) return;
  const section = input.closest("section");
  const choice = choiceOf(section);
  choice.filter = input.value;
  filter(section, choice);
});
