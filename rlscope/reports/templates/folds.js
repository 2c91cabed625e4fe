// Opens folds when a link or the address leads into them and for printing, and restores them when the page is reloaded.
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

  // The state is kept in the browser's history, so that a reload and the back button restore the page.
  function remember() {
    const open = folds.flatMap(function (each, place) { return each.open ? [place] : []; });
    try {
      history.replaceState(Object.assign({}, history.state, { open: open }), "");
    } catch (_refused) { /* A frame without an address keeps nothing. */ }
  }
  ((history.state && history.state.open) || []).forEach(function (place) { if (folds[place]) folds[place].open = true; });
  document.addEventListener("toggle", remember, true);
  lead(location.hash);

  let opened = [];
  window.addEventListener("beforeprint", function () {
    opened = folds.filter(function (each) { return !each.open && each.classList.contains("fold"); });
    opened.forEach(function (each) { each.open = true; });
    window.dispatchEvent(new Event("resize"));
  });
  window.addEventListener("afterprint", function () {
    opened.forEach(function (each) { each.open = false; });
    opened = [];
  });
})();
