// Opens folds when a link or the address leads into them, and for printing.
(function () {
  "use strict";

  const folds = Array.from(document.querySelectorAll("details.fold"));

  function unfolded(element) {
    for (let each = element; each; each = each.parentElement) if (each.tagName === "DETAILS") each.open = true;
    const own = element.querySelector(":scope > details.fold");
    if (own) own.open = true;
  }

  function lead(hash) {
    const target = hash.length > 1 && document.getElementById(decodeURIComponent(hash.slice(1)));
    if (!target) return;
    unfolded(target);
    target.scrollIntoView();
  }

  document.addEventListener("click", function (event) {
    const link = event.target.closest("a[href^='#']");
    if (link) lead(link.getAttribute("href"));
  });
  window.addEventListener("hashchange", function () { lead(location.hash); });

  lead(location.hash);

  let opened = [];
  window.addEventListener("beforeprint", function () {
    opened = folds.filter(function (each) { return !each.open; });
    opened.forEach(function (each) { each.open = true; });
    window.dispatchEvent(new Event("resize"));
  });
  window.addEventListener("afterprint", function () {
    opened.forEach(function (each) { each.open = false; });
    opened = [];
  });
})();
