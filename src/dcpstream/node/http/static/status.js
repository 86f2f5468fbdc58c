// Asks for the page's content again and again, and turns counters into rates: what a count grew by since the last time.
"use strict";
const PAUSE_MS = 2000;
const CONTENT = location.origin + "/ui/content"; // without a name and password that stood in the address
const before = new Map();

function rates() {
  const now = performance.now();
  for (const place of document.querySelectorAll("[data-count]")) {
    const count = Number(place.dataset.count);
    const last = before.get(place.dataset.key);
    before.set(place.dataset.key, { count, now });
    if (last && now > last.now && count >= last.count) {
      const rate = ((count - last.count) * 1000) / (now - last.now);
      place.textContent = Math.round(rate).toLocaleString("en");
    }
  }
}

async function again() {
  try {
    const answer = await fetch(CONTENT, { cache: "no-store" });
    if (answer.ok) {
      document.querySelector("main").innerHTML = await answer.text();
      rates();
    }
    document.body.classList.toggle("stale", !answer.ok);
  } catch {
    document.body.classList.add("stale");
  }
  setTimeout(again, PAUSE_MS);
}

rates();
setTimeout(again, PAUSE_MS / 4);
