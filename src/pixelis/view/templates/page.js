"use strict";
// A footprint in the list and its drawings light up together; a click holds the light.
(() => {
  let held = null;
  const parts = (key) => document.querySelectorAll(`[data-mark="${CSS.escape(key)}"]`);
  const light = (key, on) => {
    if (!key) return;
    for (const part of parts(key)) {
      part.classList.toggle("lit", on);
      const marks = part.closest(".marks");
      if (marks) marks.classList.toggle("lighting", on);
      if (part.tagName === "BUTTON") part.setAttribute("aria-pressed", String(key === held));
    }
  };
  const keyOf = (event) => {
    const part = event.target.closest ? event.target.closest("[data-mark]") : null;
    return part ? part.dataset.mark : null;
  };
  for (const [enter, leave] of [["mouseover", "mouseout"], ["focusin", "focusout"]]) {
    document.addEventListener(enter, (event) => light(keyOf(event), true));
    document.addEventListener(leave, (event) => { const key = keyOf(event); if (key !== held) light(key, false); });
  }
  document.addEventListener("click", (event) => {
    const key = keyOf(event);
    if (key) {
      const before = held;
      held = key === before ? null : key;
      if (before) light(before, false);
      light(key, held === key);
      const entry = [...parts(key)].find((part) => part.tagName === "BUTTON");
      if (entry && !entry.contains(event.target)) entry.scrollIntoView({ block: "nearest" });
    }
    const toggle = event.target.closest ? event.target.closest("[data-toggle]") : null;
    if (toggle) {
      const bare = document.getElementById(toggle.dataset.toggle).classList.toggle("bare");
      toggle.setAttribute("aria-pressed", String(!bare));
    }
  });
})();
