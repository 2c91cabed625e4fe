// Draws every chart of the page. The bundle before this script declares short global names: nothing of ours is global.
(function () {
  "use strict";

  // Colours are the page's CSS variables: light, dark and print need no second drawing.
  const ink = "var(--ink)", muted = "var(--muted)", line = "var(--line)";
  // The font is spelled out: text is measured on a canvas, which knows no variables.
  const font = getComputedStyle(document.body).fontFamily;
  const config = {
    background: "transparent",
    font: font,
    padding: { left: 0, right: 2, top: 2, bottom: 6 },
    view: { stroke: null },
    axis: {
      labelColor: muted, titleColor: muted, titleFontWeight: "normal", titleFontSize: 12, labelFontSize: 12,
      gridColor: line, domainColor: line, tickColor: line, titlePadding: 8, labelPadding: 4,
    },
    axisX: { grid: false, labelFlush: true, labelOverlap: "greedy" },
    axisY: { domain: false, ticks: false, titleAnchor: "end", titleAngle: 0, titleAlign: "left", titleX: 0, titleY: -10, minExtent: 34 },
    axisBand: { labelColor: ink },
    legend: { labelColor: ink, titleColor: muted, titleFontWeight: "normal", labelFontSize: 12, titleFontSize: 12, symbolStrokeWidth: 3, offset: 8, rowPadding: 4, columnPadding: 16 },
    line: { strokeWidth: 1.75, strokeJoin: "round" },
    text: { color: ink, fontSize: 12 },
  };
  const options = { ast: true, actions: false, renderer: "svg", config: config, defaultStyle: false, tooltip: { disableDefaultStyle: true } };

  function draw(chart) {
    const spec = JSON.parse(document.getElementById(chart.dataset.spec).textContent);
    return window.vegaEmbed(chart, spec, options).catch(function (error) {
      chart.textContent = "This picture could not be drawn (" + error.message + "); its numbers are below.";
      console.error(error);
    });
  }

  Promise.all(Array.from(document.querySelectorAll(".chart"), draw)).then(function () {
    document.documentElement.dataset.charts = "drawn";
  });
})();
