// Turns counts into rates: what a count grew by since the last look. Levels stay as they are. Looks are kept for this tab, over several pages.
const KEEP_MS = 5 * 60 * 1000;
const LOOKS_MAX = 200; // five minutes at a look every two seconds
const STORE = "dcpstream-looks";

function load() {
  try {
    return new Map(JSON.parse(sessionStorage.getItem(STORE) ?? "[]"));
  } catch {
    return new Map();
  }
}

const looks = load(); // page and key → [[ms since 1970, count], …], oldest first

addEventListener("pagehide", () => {
  try {
    sessionStorage.setItem(STORE, JSON.stringify([...looks]));
  } catch {
    // The browser keeps nothing, or has no room: the next page begins without a past.
  }
});

function look(key, count, isLevel = false) {
  const place = `${location.pathname} ${key}`;
  const now = Date.now();
  const seen = (looks.get(place) ?? []).filter(([at]) => now - at < KEEP_MS).slice(-LOOKS_MAX);
  if (!isLevel && seen.length && count < seen[seen.length - 1][1]) seen.length = 0; // the server was restarted
  seen.push([now, count]);
  looks.set(place, seen);
  return seen;
}

// [ms since 1970, per second] for each pair of looks.
export function ratesOf(place) {
  const seen = look(place.dataset.key, Number(place.dataset.count));
  return seen.slice(1).flatMap(([at, count], index) => {
    const [before, least] = seen[index];
    return at > before ? [[at, ((count - least) * 1000) / (at - before)]] : [];
  });
}

// [ms since 1970, value] for each look.
export function levelsOf(place) {
  return look(place.dataset.key, Number(place.dataset.level), true);
}

export function shown(rate) {
  const digits = rate > 0 && rate < 10 ? 1 : 0;
  return rate.toLocaleString("en", { maximumFractionDigits: digits });
}

export function showRates(content) {
  for (const place of content.querySelectorAll(".rate[data-count]")) {
    const rates = ratesOf(place);
    if (!rates.length) continue;
    const [, rate] = rates[rates.length - 1];
    place.textContent = shown(rate);
    place.closest("td")?.setAttribute("data-value", String(rate));
  }
}
