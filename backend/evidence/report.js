const dark = matchMedia("(prefers-color-scheme: dark)");
function draw() {
  const style = getComputedStyle(document.documentElement);
  const [ink, line] = ["--ink", "--line"].map((name) => style.getPropertyValue(name).trim());
  for (const [name, figure] of Object.entries(FIGURES)) {
    const axis = {gridcolor: line, zerolinecolor: line, linecolor: line};
    const clear = "transparent";
    const layout = {...figure.layout, paper_bgcolor: clear, plot_bgcolor: clear, font: {color: ink},
      xaxis: {...figure.layout.xaxis, ...axis}, yaxis: {...figure.layout.yaxis, ...axis}};
    Plotly.react(name, figure.data, layout, {displayModeBar: false, responsive: true});
  }
}
draw();
dark.addEventListener("change", draw);
