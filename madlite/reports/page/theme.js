// The theme that was chosen here before, else the system's; "js" shows what only works with scripts.
(() => {
  const root = document.documentElement;
  root.classList.add("js");
  try {
    const theme = localStorage.getItem("madlite-theme");
    if (theme === "dark" || theme === "light") root.dataset.theme = theme;
  } catch { /* a page opened from a file may have no storage */ }
})();
