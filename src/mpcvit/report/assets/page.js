"use strict";

const asCsv = (table) =>
  [...table.rows].map((row) => [...row.cells].map((cell) => {
    const text = cell.textContent;
    return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  }).join(",")).join("\n") + "\n";

for (const button of document.querySelectorAll("button.csv")) {
  button.addEventListener("click", () => {
    const text = asCsv(document.getElementById(button.dataset.table));
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
    link.download = button.dataset.file;
    link.click();
    URL.revokeObjectURL(link.href);
  });
}
