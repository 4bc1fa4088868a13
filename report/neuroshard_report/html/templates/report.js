"use strict";
(() => {
  const number = (text) => parseFloat(text.replaceAll(",", ""));

  // Sort a table by the column whose heading is pressed; numbers as numbers, largest first.
  for (const table of document.querySelectorAll("table.sortable")) {
    const body = table.tBodies[0];
    for (const button of table.querySelectorAll("thead button")) {
      button.addEventListener("click", () => {
        const heading = button.parentElement;
        const column = heading.cellIndex;
        const rows = [...body.rows].map((row) => [row.cells[column].textContent, row]);
        const isNumeric = !heading.classList.contains("text") && !rows.some(([text]) => Number.isNaN(number(text)));
        const falls = heading.getAttribute("aria-sort") === "descending" || (!isNumeric && !heading.hasAttribute("aria-sort"));
        const sign = falls ? 1 : -1;
        rows.sort(([a], [b]) => sign * (isNumeric ? number(a) - number(b) : a.localeCompare(b, "en", { numeric: true })));
        for (const other of table.querySelectorAll("th[aria-sort]")) other.removeAttribute("aria-sort");
        heading.setAttribute("aria-sort", falls ? "ascending" : "descending");
        body.append(...rows.map(([, row]) => row));
      });
    }
  }

  // Show the tables whose name or module contains the text and that have a shard on the device.
  const list = document.getElementById("table-list");
  const name = document.getElementById("filter-name");
  const device = document.getElementById("filter-device");
  const entries = [...list.tBodies[0].rows].map((row) => [
    [row.cells[0], ...row.querySelectorAll(".module")].map((cell) => cell.textContent.toLowerCase()).join(" "), row.lastElementChild.textContent.split(", "), row,
  ]);
  const filter = () => {
    let shown = 0;
    for (const [text, devices, row] of entries) {
      row.hidden = !text.includes(name.value.toLowerCase()) || (device.value !== "" && !devices.includes(device.value));
      shown += row.hidden ? 0 : 1;
    }
    document.getElementById("filter-count").textContent = `${shown} shown`;
  };
  name.addEventListener("input", filter);
  device.addEventListener("input", filter);
  name.form.addEventListener("submit", (event) => event.preventDefault());

  // Name the device under the pointer in a strip of columns; a click lists its tables.
  const data = JSON.parse(document.getElementById("strip-data").textContent);
  const tip = document.getElementById("tip");
  for (const figure of document.querySelectorAll(".strip-figure")) {
    const terms = [...figure.parentElement.querySelectorAll(".legend li")].map((item) => item.textContent);
    const strip = figure.querySelector(".strip");
    const under = (event) => {
      const box = strip.getBoundingClientRect();
      return Math.min(data.length - 1, Math.max(0, Math.floor(((event.clientX - box.left) / box.width) * data.length)));
    };
    strip.addEventListener("pointermove", (event) => {
      const index = under(event);
      const values = data[index][figure.dataset.kind];
      const sum = values.reduce((a, b) => a + b, 0);
      const lines = terms.map((term, i) => `${term}: ${values[i]} ${figure.dataset.unit}`);
      tip.textContent = [`device ${index}, ${data[index][2]} shards: ${sum.toFixed(2)} ${figure.dataset.unit}`, ...lines].join("\n");
      tip.hidden = false;
      tip.style.left = `${Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8)}px`;
      tip.style.top = `${event.clientY + 16}px`;
    });
    strip.addEventListener("pointerleave", () => { tip.hidden = true; });
    strip.addEventListener("click", (event) => {
      device.value = under(event);
      filter();
      list.scrollIntoView({ block: "center" });
    });
  }
})();
