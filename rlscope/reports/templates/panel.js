// Shows the what-ifs of the panel. Every choice is a point that was solved when the report was written.
(function () {
  "use strict";

  const panel = document.getElementById("try-panel");
  if (!panel) return;
  const points = JSON.parse(document.getElementById("try-points").textContent);
  const groups = Array.from(panel.querySelectorAll("fieldset")), figures = panel.querySelectorAll(".figure");
  const split = groups.find(function (each) { return each.dataset.setting === "split"; });
  const settings = groups.filter(function (each) { return each !== split; });
  const marker = panel.querySelector(".at");

  function value(group) {
    return group ? group.querySelector("input:checked").value : "0";
  }

  function key(place, group, wanted) {
    return group && wanted ? [place, group.dataset.setting, wanted].join("/") : place;
  }

  function chosen() {
    const changed = settings.find(value);
    return key(value(split), changed, changed && value(changed));
  }

  function show() {
    const [said, remark, command, cells, at] = points[chosen()];
    settings.forEach(function (group) {
      group.querySelectorAll("input").forEach(function (each) {
        each.disabled = !(key(value(split), group, each.value) in points);
      });
    });
    panel.querySelector(".said").textContent = said;
    panel.querySelector(".remark").textContent = remark;
    panel.querySelector("code").textContent = command;
    figures.forEach(function (cell, place) { cell.textContent = cells[place]; });
    if (marker) marker.toggleAttribute("hidden", at === null);
    if (!marker || at === null) return;
    const [x, y, low, high] = at;
    marker.firstChild.setAttribute("d", `M${x} ${low}V${high}`);
    marker.lastChild.setAttribute("cx", x);
    marker.lastChild.setAttribute("cy", y);
  }

  // One setting changes with the split. If it was not solved at a new split, it returns to its current value.
  panel.addEventListener("change", function (event) {
    const group = event.target.closest("fieldset"), keeps = group === split && chosen() in points;
    settings.forEach(function (each) {
      if (each !== group && !keeps) each.querySelector("[value='']").checked = true;
    });
    show();
  });
  panel.querySelector(".tried").hidden = false;
  panel.classList.add("live");
  show();
})();
