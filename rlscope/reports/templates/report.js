// Draws every chart of the page. The bundle before this script declares short global names: nothing of ours is global.
(function () {
  "use strict";

  // Colours are the page's CSS variables: light, dark and print need no second drawing. The font is spelled out: text
  // is measured on a canvas, which knows no variables.
  const config = JSON.parse(document.getElementById("chart-config").textContent);
  config.font = getComputedStyle(document.body).fontFamily;
  const options = { ast: true, actions: false, renderer: "svg", config: config, defaultStyle: false, tooltip: { disableDefaultStyle: true } };

  // The page holds a chart's rows by column, which is a third of their size.
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

  Promise.all(Array.from(document.querySelectorAll(".chart"), draw)).then(function () {
    document.documentElement.dataset.charts = "drawn";
  });
})();
