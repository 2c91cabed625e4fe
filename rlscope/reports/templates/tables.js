// Copies the numbers of a chart, tab-separated for a spreadsheet. Without a clipboard, it selects them.
(function () {
  "use strict";

  const announced = document.getElementById("said");

  function tabbed(table) {
    return Array.from(table.rows, function (row) {
      return Array.from(row.cells, function (cell) {
        return cell.textContent.trim().replace(/\s+/g, " ");
      }).join("\t");
    }).join("\n");
  }

  function selected(table) {
    const selection = window.getSelection();
    selection.removeAllRanges();
    const range = document.createRange();
    range.selectNode(table);
    selection.addRange(range);
  }

  function announce(button, words) {
    const label = button.firstChild;
    announced.textContent = words;
    label.data = words;
    window.setTimeout(function () { label.data = "Copy"; }, 3000);
  }

  async function copied(button) {
    const table = document.getElementById(button.dataset.copies);
    const rows = table.tBodies[0].rows.length;
    try {
      await navigator.clipboard.writeText(tabbed(table));
      announce(button, rows === 1 ? "Copied 1 row" : "Copied " + rows + " rows");
    } catch (_refused) {
      selected(table);
      announce(button, "Selected: copy with the keyboard");
    }
  }

  document.querySelectorAll("button[data-copies]").forEach(function (button) {
    button.hidden = false;
    button.addEventListener("click", function () { copied(button); });
  });
})();
