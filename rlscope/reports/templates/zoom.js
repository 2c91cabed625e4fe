// Shared zoom of all charts over time: drag over one, or use the keys.
// Such a chart has the two signals below; report.js sends an event when a chart is drawn.
(function () {
  "use strict";

  const FROM = "zoom_from_s", TO = "zoom_to_s";
  const LEAST_DRAG_PX = 6, PAN_RATIO = 0.2, ZOOM_RATIO = 2, LEAST_RATIO = 1 / 2000;
  const bar = document.getElementById("zoom"), words = document.getElementById("zoom-words");
  const back = document.getElementById("zoom-reset"), all = document.getElementById("zoom-whole");
  const whole = { from: 0, to: Number(bar.dataset.durationS) };
  // Start-up is folded: charts over time begin at the steady state.
  const first = { from: Number(bar.dataset.fromS), to: whole.to };
  const views = new Map();
  let shown = first;

  // Four digits tell two ranges apart; other numbers of the report are formatted in Python.
  function seconds(value) {
    return Number(value.toPrecision(4)).toLocaleString("en", { maximumFractionDigits: 6 });
  }

  function is(stretch) {
    return Math.abs(shown.from - stretch.from) + Math.abs(shown.to - stretch.to) < LEAST_RATIO * (whole.to - whole.from);
  }

  function said() {
    if (is(whole)) return "All charts over time show the whole run.";
    if (is(first)) return "Charts over time begin at the steady state, " + seconds(first.from) + " s in.";
    return "All charts over time show " + seconds(shown.from) + " s to " + seconds(shown.to) + " s of " + seconds(whole.to) + " s.";
  }

  function tell() {
    back.hidden = is(first);
    all.hidden = is(whole);
    document.documentElement.dataset.zoom = is(first) || is(whole) ? "whole" : "part";
    words.textContent = said();
  }

  function apply(view) {
    view.signal(FROM, shown.from).signal(TO, shown.to).runAsync();
  }

  function show(from, to) {
    const least = (whole.to - whole.from) * LEAST_RATIO;
    const length = Math.min(Math.max(to - from, least), whole.to - whole.from);
    const start = Math.min(Math.max(from, whole.from), whole.to - length);
    shown = { from: start, to: start + length };
    views.forEach(apply);
    tell();
  }

  function reset() {
    show(first.from, first.to);
  }

  // The rectangle between the axes.
  function plot(chart) {
    return chart.querySelector(".role-frame .background").getBoundingClientRect();
  }

  function moment(box, x) {
    const ratio = Math.min(Math.max((x - box.left) / box.width, 0), 1);
    return shown.from + ratio * (shown.to - shown.from);
  }

  function brushed(chart) {
    const band = document.createElement("div");
    band.className = "brush";
    let start = null;

    function draw(x) {
      const box = plot(chart), frame = chart.getBoundingClientRect();
      const left = Math.max(Math.min(start, x), box.left), right = Math.min(Math.max(start, x), box.right);
      band.style.cssText = "left:" + (left - frame.left) + "px;width:" + Math.max(0, right - left) + "px;top:" + (box.top - frame.top) + "px;height:" + box.height + "px";
    }

    function stop() {
      start = null;
      band.remove();
    }

    chart.addEventListener("pointerdown", function (event) {
      const box = plot(chart);
      if (event.button !== 0 || !event.isPrimary || event.clientX < box.left || event.clientX > box.right) return;
      start = event.clientX;
      chart.setPointerCapture(event.pointerId);
    });
    chart.addEventListener("pointermove", function (event) {
      if (start === null || Math.abs(event.clientX - start) < LEAST_DRAG_PX) return;
      chart.append(band);
      draw(event.clientX);
    });
    chart.addEventListener("pointerup", function (event) {
      if (start !== null && Math.abs(event.clientX - start) >= LEAST_DRAG_PX) {
        const box = plot(chart), ends = [moment(box, start), moment(box, event.clientX)];
        show(Math.min(...ends), Math.max(...ends));
      }
      stop();
    });
    chart.addEventListener("pointercancel", stop);
    chart.addEventListener("dblclick", reset);
  }

  function pan(ratio) {
    const by = ratio * (shown.to - shown.from);
    show(shown.from + by, shown.to + by);
  }

  function zoom(ratio) {
    const middle = (shown.from + shown.to) / 2, half = (shown.to - shown.from) / 2 / ratio;
    show(middle - half, middle + half);
  }

  const keys = {
    ArrowLeft: function () { pan(-PAN_RATIO); },
    ArrowRight: function () { pan(PAN_RATIO); },
    "+": function () { zoom(ZOOM_RATIO); },
    "=": function () { zoom(ZOOM_RATIO); },
    "-": function () { zoom(1 / ZOOM_RATIO); },
    Escape: reset,
  };

  function onKey(event) {
    const act = event.ctrlKey || event.metaKey || event.altKey ? undefined : keys[event.key];
    if (act === undefined) return;
    event.preventDefault();
    act();
  }

  document.addEventListener("chart-drawn", function (event) {
    const chart = event.target, view = event.detail;
    if (!(FROM in view.getState().signals)) return;
    views.set(chart, view);
    chart.classList.add("zooms");
    chart.tabIndex = 0;
    chart.setAttribute("role", "group");
    chart.setAttribute("aria-labelledby", chart.closest("figure").id + "-title");
    chart.setAttribute("aria-describedby", "zoom-keys");
    chart.addEventListener("keydown", onKey);
    brushed(chart);
    apply(view);
  });

  // A view of a switch may have a stretch of its own, which all charts then show; its other views reset the zoom.
  const own = document.querySelector("input[data-from]");
  const start = own ? document.querySelector(`input[name="${own.name}"]`) : null;
  document.addEventListener("change", function (event) {
    if (!own || event.target.name !== own.name) return;
    if (event.target === own) show(Number(own.dataset.from), Number(own.dataset.to));
    else reset();
  });
  bar.hidden = false;
  tell();
  all.addEventListener("click", function () { show(whole.from, whole.to); });
  back.addEventListener("click", function () {
    if (start && !start.checked) start.click();
    else reset();
  });
})();
