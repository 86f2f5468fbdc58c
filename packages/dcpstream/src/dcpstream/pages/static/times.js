// Writes moments in the time of the browser.
export function showTimes(content) {
  for (const place of content.querySelectorAll("time[data-unix]")) {
    const moment = new Date(Number(place.dataset.unix) * 1000);
    place.dateTime = moment.toISOString();
    place.textContent = moment.toLocaleString();
  }
}
