// Draws rates and levels over time as lines, with the largest value and the time that is shown.
import { levelsOf, ratesOf, shown } from "./rates.js";

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 300;
const HEIGHT = 64;
const LEAST_SPAN_MS = 60 * 1000;
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

function bytes(rate) {
  let unit = 0;
  while (rate >= 1024 && unit < UNITS.length - 1) {
    rate /= 1024;
    unit += 1;
  }
  return `${shown(rate)} ${UNITS[unit]}`;
}

function element(name, attributes, text = "") {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, String(value));
  made.textContent = text;
  return made;
}

function line(rates, top, span, end) {
  const points = rates.map(([at, rate]) => {
    const x = WIDTH * (1 - (end - at) / span);
    const y = HEIGHT - 2 - (HEIGHT - 4) * (top ? rate / top : 0);
    return `${x.toFixed(1)},${y.toFixed(1)}`;
  });
  if (points.length === 1) points.push(points[0]); // drawn as a dot
  const first = points[0].split(",")[0];
  const last = points[points.length - 1].split(",")[0];
  return {
    stroke: `M${points.join("L")}`,
    area: `M${first},${HEIGHT}L${points.join("L")}L${last},${HEIGHT}Z`,
  };
}

function draw(figure) {
  const rates = "level" in figure.dataset ? levelsOf(figure) : ratesOf(figure);
  if (!rates.length) return;
  const write = "bytes" in figure.dataset ? bytes : shown;
  const end = rates[rates.length - 1][0];
  const span = Math.max(LEAST_SPAN_MS, end - rates[0][0]);
  const values = rates.map(([, rate]) => rate);
  const top = Math.max(...values);
  const now = values[values.length - 1];
  const seconds = Math.round(span / 1000);
  const time = seconds >= 120 ? `${Math.round(seconds / 60)} min` : `${seconds} s`;
  const name = figure.querySelector("figcaption").textContent;
  const picture = element("svg", {
    viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
    preserveAspectRatio: "none",
    role: "img",
    "aria-label": `${name}: now ${write(now)}, at most ${write(top)} in the last ${time}`,
  });
  const { stroke, area } = line(rates, top, span, end);
  picture.append(element("path", { class: "area", d: area }), element("path", { class: "line", d: stroke }));
  const axis = document.createElement("p");
  axis.className = "axis";
  axis.setAttribute("aria-hidden", "true");
  axis.append(`${time} ago`, document.createElement("span"), `at most ${write(top)}`);
  figure.querySelector(".now").textContent = write(now);
  figure.append(picture, axis);
}

export function drawPlots(content) {
  content.querySelectorAll("figure.plot:is([data-count], [data-level])").forEach(draw);
}
