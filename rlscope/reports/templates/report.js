// Draws every chart of the report. The bundle before this script declares short global names, so this script declares none.
(function () {
  "use strict";

  // Colors are CSS variables of the report, so light mode, dark mode and print need no second drawing. The font is
  // spelled out because text is measured on a canvas, which knows no variables.
  const config = JSON.parse(document.getElementById("chart-config").textContent);
  config.font = getComputedStyle(document.body).fontFamily;
  const options = { ast: true, actions: false, renderer: "svg", config: config, defaultStyle: false, tooltip: { disableDefaultStyle: true } };

  // The report stores the rows of a chart by column, in a third of the size.
  function rows(columns) {
    const names = Object.keys(columns);
    return Array.isArray(columns) ? columns : columns[names[0]].map(function (_, row) {
      return Object.fromEntries(names.map(function (name) { return [name, columns[name][row]]; }));
    });
  }

  function draw(chart) {
    const spec = JSON.parse(document.getElementById(chart.dataset.spec).textContent);
    for (const name of Object.keys(spec.datasets)) spec.datasets[name] = rows(spec.datasets[name]);
    return window.vegaEmbed(chart, spec, options).then(function (result) {
      chart.dispatchEvent(new CustomEvent("chart-drawn", { bubbles: true, detail: result.view }));
    }).catch(function (error) {
      chart.textContent = "This chart could not be drawn (" + error.message + "). Its numbers are below.";
      console.error(error);
    });
  }

  // Visible charts are drawn first. Folded charts are drawn when they are opened or when the browser is idle.
  const charts = Array.from(document.querySelectorAll(".chart")), begun = new Map();
  const later = window.requestIdleCallback || function (act) { return window.setTimeout(act, 30); };

  function isShown(chart) {
    return chart.checkVisibility === undefined ? chart.getClientRects().length > 0 : chart.checkVisibility();
  }

  function once(chart) {
    if (!begun.has(chart)) begun.set(chart, draw(chart));
    return begun.get(chart);
  }

  // A chart that was drawn while folded has no width until the window sends a resize event. Every chart listens to it:
  // folds that open at once, as for print, share one event, and tables of numbers send none.
  let told = false;
  function shown(event) {
    const holdsNone = event.type === "toggle" && event.target.querySelector(".chart") === null;
    if (told || holdsNone) return;
    told = true;
    window.requestAnimationFrame(function () {
      told = false;
      charts.filter(isShown).forEach(once);
      window.dispatchEvent(new Event("resize"));
    });
  }

  function next() {
    const chart = charts.find(function (each) { return !begun.has(each); });
    if (chart) once(chart).then(function () { later(next); });
    else document.documentElement.dataset.charts = "all";
  }

  document.addEventListener("toggle", shown, true);
  document.addEventListener("change", shown);
  Promise.all(charts.filter(isShown).map(once)).then(function () {
    document.documentElement.dataset.charts = "drawn";
    later(next);
  });
})();
