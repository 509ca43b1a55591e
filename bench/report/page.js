// Shows what a mark says beside it, at once and on touch, too. Without this a browser shows the same as a tooltip of its own.
const tip = document.getElementById("tip");

function show(mark) {
    const title = mark.querySelector("title");
    if (title) { mark.dataset.says = title.textContent; title.remove(); }
    tip.textContent = mark.dataset.says;
    tip.hidden = false;
    const at = mark.getBoundingClientRect(), own = tip.getBoundingClientRect();
    const middle = mark.classList.contains("bar") ? Math.min(at.right, innerWidth - 8) - own.width : at.left + at.width / 2 - own.width / 2;
    tip.style.left = Math.max(8, Math.min(innerWidth - own.width - 8, middle)) + "px";
    tip.style.top = (at.top - own.height - 6 < 4 ? at.bottom + 6 : at.top - own.height - 6) + "px";
}

document.addEventListener("pointerover", (event) => {
    const mark = event.target.closest && event.target.closest(".mark");
    if (mark) show(mark);
});
document.addEventListener("pointerout", () => { tip.hidden = true; });
addEventListener("scroll", () => { tip.hidden = true; }, { passive: true });
