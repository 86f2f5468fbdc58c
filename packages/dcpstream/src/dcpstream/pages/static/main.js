// What the pages do in a browser: they load themselves again, and people sort, filter, and send orders.
import { decorateTables } from "./tables.js";
import { drawPlots } from "./plots.js";
import { showRates } from "./rates.js";
import { showTimes } from "./times.js";
import { takeOrders } from "./orders.js";
import { keepFresh } from "./refresh.js";

// Order matters: rates make the numbers that tables sort by, and plots draw.
function decorate(content) {
  showTimes(content);
  showRates(content);
  drawPlots(content);
  decorateTables(content);
}

decorate(document.getElementById("main"));
takeOrders();
keepFresh(decorate);
