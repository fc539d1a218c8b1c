#include "sections.h"

namespace tutti::examples {
namespace {

// The colours of series are those of Okabe and Ito (2008), which colour-blind people can tell
// apart; in the dark they are the brighter ones of the same set. No meaning rests on colour alone.
constexpr const char* style = R"(:root {
  color-scheme: light dark;
  --page: #f4f6f8; --card: #ffffff; --ink: #17202b; --soft: #586474; --line: #dfe4ea;
  --faint: #eef1f5; --blue: #0072b2; --orange: #d55e00; --green: #00795a; --on-color: #ffffff;
  --load: #e69f00; --forward: #56b4e9; --backward: #0072b2; --optimizer: #009e73;
  --waiting: #cc79a7; --other: #aab4c0;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #10151b; --card: #181f28; --ink: #e9eef4; --soft: #9dabbb; --line: #2d3845;
    --faint: #212a35; --blue: #56b4e9; --orange: #f0a03c; --green: #3cc79c; --on-color: #10151b;
    --backward: #2f8fd0; --other: #5d6b7b;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--ink); -webkit-text-size-adjust: 100%;
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Noto Sans",
    "DejaVu Sans", sans-serif;
}
main { max-width: 1120px; margin: 0 auto; padding: 2.5rem 1.5rem 2rem; }
h1 { margin: .15rem 0 .4rem; font-size: clamp(1.6rem, 4.5vw, 2.4rem); line-height: 1.15;
  letter-spacing: -.02em; font-weight: 680; overflow-wrap: anywhere; }
h2 { margin: 0 0 1rem; font-size: 1.2rem; letter-spacing: -.01em; font-weight: 650; }
h3 { margin: 0 0 .6rem; font-size: .95rem; font-weight: 620; }
p { margin: 0 0 1rem; max-width: 72ch; }
.lead, .note { color: var(--soft); }
.note { font-size: .86rem; margin: -.55rem 0 1.1rem; }
p.note { max-width: 100ch; }
.state { margin: 0 0 .35rem; font-size: .86rem; color: var(--soft); }
.state .when { margin-left: .9em; }
.done, .running { font-weight: 650; color: var(--green); margin-right: .5em; }
.done::before { content: "\2713\00a0"; }
.running { color: var(--orange); }
.running::before { content: "\25cf\00a0"; }
section { background: var(--card); border: 1px solid var(--line); border-radius: 14px;
  padding: 1.5rem 1.6rem; margin: 1.25rem 0; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.2rem, 1fr)); gap: 1px;
  margin: 1.6rem 0 0; background: var(--line); border: 1px solid var(--line); border-radius: 14px;
  overflow: hidden; }
.figures div { background: var(--card); padding: 1rem 1.2rem .9rem; }
.figures dt { font-size: .8rem; color: var(--soft); }
.figures dd { margin: .1rem 0 0; font-size: 1.6rem; font-weight: 640; letter-spacing: -.02em;
  font-variant-numeric: tabular-nums; line-height: 1.25; }
.figures dd small { font-size: .78rem; font-weight: 400; letter-spacing: 0; color: var(--soft); }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(22rem, 100%), 1fr));
  gap: 1.6rem 2rem; }
figure { margin: 0; min-width: 0; }
figcaption { display: flex; flex-wrap: wrap; gap: .1rem 1.1rem; align-items: baseline;
  margin-bottom: .3rem; font-size: .86rem; color: var(--soft); font-variant-numeric: tabular-nums; }
figcaption b { color: var(--ink); font-size: .95rem; font-weight: 620; margin-right: auto; }
.key::before { content: ""; display: inline-block; vertical-align: middle; margin-right: .45em;
  width: 1.1em; height: 0; border-top: 2.5px solid var(--blue); }
.key.test::before { width: .65em; height: .65em; border: 0; border-radius: 50%;
  background: var(--orange); }
svg { display: block; width: 100%; height: auto; overflow: visible; }
svg text { font-size: 12px; fill: var(--soft); font-variant-numeric: tabular-nums; }
.chart path { fill: none; stroke-linejoin: round; stroke-linecap: round; }
.chart .grid { stroke: var(--line); }
.chart .epoch { stroke: var(--soft); stroke-dasharray: 1 4; }
.chart .train { stroke: var(--blue); stroke-width: 2.2; }
.chart .faint { stroke: var(--blue); stroke-width: 1; opacity: .28; }
.chart .test-line { stroke: var(--orange); stroke-width: 1.4; stroke-dasharray: 5 3; }
.chart circle { fill: var(--orange); stroke: var(--card); stroke-width: 1.5; }
.pictures { display: grid; grid-template-columns: repeat(auto-fill, minmax(9.2rem, 1fr));
  gap: 1.1rem .9rem; margin: 0 0 1.6rem; padding: 0; list-style: none; }
.pictures:last-child { margin-bottom: 0; }
.pictures li { min-width: 0; font-size: .84rem; line-height: 1.3; }
.pictures img { display: block; width: 100%; aspect-ratio: 1; object-fit: contain;
  background: var(--faint); border: 1px solid var(--line); border-radius: 8px;
  margin-bottom: .4rem; }
.pictures img.small { image-rendering: pixelated; }
.pictures b { display: block; font-weight: 620; overflow-wrap: anywhere; }
.pictures span { color: var(--soft); overflow-wrap: anywhere; }
.bar { display: block; height: 5px; border-radius: 3px; background: var(--faint); overflow: hidden;
  margin: .3rem 0 0; }
.bar i { display: block; height: 100%; background: var(--blue); border-radius: 3px; }
.wrong .bar i, td .bar i { background: var(--orange); }
.columns { display: grid; gap: 1.8rem 2.4rem;
  grid-template-columns: repeat(auto-fit, minmax(min(20rem, 100%), 1fr)); align-items: start; }
.columns > div { min-width: 0; }
.columns > div > div + div { margin-top: 1.8rem; }
.matrix text { fill: var(--ink); font-size: 13px; }
.matrix .axis { fill: var(--soft); font-size: 12px; }
.matrix .on { fill: var(--on-color); font-weight: 620; }
.matrix .cell { fill: var(--faint); }
.matrix .right { fill: var(--blue); }
.matrix .wrong { fill: var(--orange); }
table { border-collapse: collapse; width: 100%; font-size: .88rem;
  font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .36rem .9rem .36rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; overflow-wrap: anywhere; }
tr:last-child > * { border-bottom: 0; }
thead th { font-weight: 500; color: var(--soft); font-size: .8rem; }
tbody th { font-weight: 400; }
.facts { columns: 2 22rem; column-gap: 2.4rem; margin: 0 0 1.6rem; font-size: .88rem; }
.facts:last-child { margin-bottom: 0; }
.facts div { display: flex; gap: 1rem; padding: .3rem 0; border-bottom: 1px solid var(--line);
  break-inside: avoid; }
.facts dt { flex: 0 0 40%; color: var(--soft); overflow-wrap: anywhere; }
.facts dd { margin: 0; min-width: 0; overflow-wrap: anywhere; }
.number { text-align: right; white-space: nowrap; }
.scroll { overflow-x: auto; }
.stack { display: flex; height: 1.7rem; border-radius: 6px; overflow: hidden; gap: 1px;
  background: var(--card); }
.stack i { display: block; min-width: 0; }
.ranks { display: grid; grid-template-columns: max-content 1fr max-content; gap: .5rem .9rem;
  align-items: center; font-size: .86rem; margin: 0 0 1rem; font-variant-numeric: tabular-nums; }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; margin: 0 0 1.2rem; padding: 0;
  list-style: none; font-size: .86rem; }
.legend i { display: inline-block; width: .8em; height: .8em; border-radius: 3px;
  margin-right: .45em; vertical-align: -.05em; }
.load { background: var(--load); } .forward { background: var(--forward); }
.backward { background: var(--backward); } .optimizer { background: var(--optimizer); }
.waiting { background: var(--waiting); } .other { background: var(--other); }
.advice { margin: 0 0 1.4rem; padding: 0; list-style: none; max-width: 100ch; }
.advice li { padding: .65rem .95rem; margin-bottom: .5rem; border-radius: 8px;
  border-left: 3px solid var(--orange); background: var(--faint); font-size: .9rem; }
.advice .good { border-color: var(--green); }
.layers td .bar { margin-top: .15rem; }
footer p { margin: 1.5rem 0 0; font-size: .8rem; color: var(--soft); }
@media (max-width: 40rem) {
  main { padding: 1.25rem .75rem 1.5rem; }
  section { padding: 1.1rem 1rem; border-radius: 10px; margin: .9rem 0; }
  .figures { grid-template-columns: 1fr 1fr; border-radius: 10px; }
  .figures div { padding: .75rem .9rem; }
  .figures dd { font-size: 1.3rem; }
  .pictures { grid-template-columns: repeat(auto-fill, minmax(5.6rem, 1fr)); gap: .9rem .6rem; }
}
@media print { body { background: none; } section { break-inside: avoid; } }
)";

}  // namespace

std::string style_sheet() { return style; }

}  // namespace tutti::examples
