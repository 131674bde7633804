#include "report/page/style.h"

#include <fmt/format.h>

namespace lockstep {
namespace {

// The ramp is flipped in the dark: low values lie near the background in both. Paper is light.
const char* const kLight =
    "--paper:#fff;--ink:#1c2127;--soft:#5b6570;--rule:#dde2e7;--grid:#e9edf0;--wash:#f5f7f8;"
    "--m0:#b8500c;--m1:#1667a8;--m2:#6d4fa0;--m3:#5b6570;"
    "--p0:#8a949e;--p1:#3f7f6b;--p2:#d29a2e;--p3:#5d87b5;--p4:#c3cad0;"
    "--h0:#edf3f8;--h1:#d3e3ef;--h2:#b1cfe4;--h3:#87b5d6;"
    "--h4:#5a98c4;--h5:#3378ad;--h6:#185890;--h7:#08346a";
const char* const kDark =
    "--paper:#14181c;--ink:#e4e8eb;--soft:#9aa5af;--rule:#343c44;--grid:#262d33;--wash:#1b2126;"
    "--m0:#f0914d;--m1:#62aeea;--m2:#b59be0;--m3:#9aa5af;"
    "--p0:#77818b;--p1:#5fae95;--p2:#d9a945;--p3:#7ba6d6;--p4:#434c55;"
    "--h0:#1c262f;--h1:#21364a;--h2:#274a68;--h3:#306189;"
    "--h4:#417dac;--h5:#5f9ccb;--h6:#8cbfe6;--h7:#c9e6ff";

std::string colors() {
  return fmt::format(
      ":root{{{0}}}\n@media (prefers-color-scheme:dark){{:root{{{1}}}}}\n"
      "@media print{{:root{{color-scheme:light;{0}}}}}\n",
      kLight, kDark);
}

const char* const kChart = R"(
svg.chart{font:12px system-ui,-apple-system,"Segoe UI","DejaVu Sans",sans-serif;background:var(--paper);fill:none}
.chart text{fill:var(--soft);font-variant-numeric:tabular-nums}
.chart .title{fill:var(--ink);font-weight:600;font-size:13px}
.chart .strong{fill:var(--ink)}
.chart .small{font-size:10.5px}
.chart .grid{stroke:var(--grid)}
.chart .axis{stroke:var(--soft)}
.chart .pair{stroke:var(--rule);stroke-width:1}
.chart .m0{stroke:var(--m0)}.chart .m1{stroke:var(--m1)}.chart .m2{stroke:var(--m2)}.chart .m3{stroke:var(--m3)}
.chart .curve{stroke-width:1.4;stroke-linejoin:round}
.chart .curve.m0{stroke-dasharray:6 2.5}.chart .curve.m2{stroke-dasharray:2 2}
.chart .mark{fill:var(--paper);stroke-width:1.4}
.chart .mean,.chart .whisker{stroke-width:2.2}
.chart .whisker{stroke:var(--ink);stroke-width:1.2}
.chart .bar{stroke:none}.chart .bar.m0{fill:var(--m0)}.chart .bar.m1{fill:var(--m1)}.chart .bar.m2{fill:var(--m2)}.chart .bar.m3{fill:var(--m3)}
.chart .p0{fill:var(--p0)}.chart .p1{fill:var(--p1)}.chart .p2{fill:var(--p2)}.chart .p3{fill:var(--p3)}.chart .p4{fill:var(--p4)}
.chart .h0{fill:var(--h0)}.chart .h1{fill:var(--h1)}.chart .h2{fill:var(--h2)}.chart .h3{fill:var(--h3)}
.chart .h4{fill:var(--h4)}.chart .h5{fill:var(--h5)}.chart .h6{fill:var(--h6)}.chart .h7{fill:var(--h7)}
.chart .hit{fill:transparent;stroke:none}
)";

const char* const kPage = R"(
:root{color-scheme:light dark}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.55 system-ui,-apple-system,"Segoe UI","DejaVu Sans",sans-serif;-webkit-text-size-adjust:100%}
main{max-width:66rem;margin:0 auto;padding:2.5rem 1.25rem 4rem;overflow-wrap:break-word}
header .name{color:var(--soft);margin:0 0 .4rem;font-size:.9rem}
h1{font-size:1.55rem;line-height:1.3;letter-spacing:-.01em;font-weight:650;margin:0 0 .8rem;max-width:50rem}
h1 span{color:var(--soft);font-weight:400;letter-spacing:0}
h2{font-size:1.2rem;line-height:1.3;margin:3.2rem 0 .5rem;padding-top:1.1rem;border-top:1px solid var(--rule)}
p{margin:.4rem 0 .9rem;max-width:46rem}
p.note,figcaption{color:var(--soft);font-size:.87rem;line-height:1.5}
p.warning{border-left:3px solid var(--m0);padding-left:.8rem}
ul{margin:.4rem 0 .9rem;padding-left:1.2rem;max-width:46rem}
code{font:.87em ui-monospace,"DejaVu Sans Mono",monospace;overflow-wrap:anywhere}
nav{font-size:.87rem;color:var(--soft);margin-top:1.2rem}
nav a{color:inherit;margin-right:1rem;display:inline-block}
.figures{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,25rem),1fr));gap:1.6rem 2rem;margin:1rem 0}
figure{margin:0;min-width:0}
svg.chart{display:block;width:100%;height:auto;max-width:36rem}
figcaption{margin-top:.3rem}
details{margin-top:.35rem;font-size:.87rem}
summary{cursor:pointer;color:var(--soft);width:max-content;max-width:100%}
.pictures{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(47%,11.5rem),1fr));gap:1rem;margin:.6rem 0 1.6rem}
.pictures img{display:block;width:100%;height:auto;background:var(--wash);image-rendering:auto}
.pictures img.small{image-rendering:pixelated;width:6rem}
.swatches{display:flex;flex-wrap:wrap;gap:.2rem 1.1rem;margin:.4rem 0 .9rem;font-size:.87rem;color:var(--soft)}
.swatches span{display:inline-flex;align-items:center;gap:.4rem}
.swatches i{width:.8rem;height:.8rem;display:inline-block;border:1px solid var(--rule);print-color-adjust:exact}
.scroll{overflow-x:auto}
.key{overflow:auto;max-height:24rem}
table{border-collapse:collapse;font-size:.87rem;font-variant-numeric:tabular-nums;margin:.5rem 0}
th,td{padding:.22rem .7rem;text-align:right;border-bottom:1px solid var(--grid);white-space:nowrap}
thead th{color:var(--soft);font-weight:500;border-bottom-color:var(--rule);vertical-align:bottom}
th:first-child,td:first-child{text-align:left;padding-left:0}
tbody th{font-weight:400}
table.words td{text-align:left;white-space:normal;overflow-wrap:anywhere}
table.words thead th{text-align:left}
table.words{width:100%}
table.words th:first-child{width:1%}
footer{margin-top:3rem;color:var(--soft);font-size:.87rem}
@media (max-width:30rem){main{padding:1.5rem 1rem 3rem}h1{font-size:1.25rem}h2{margin-top:2.4rem}}
@media print{main{max-width:none;padding:0}h2{break-after:avoid}figure,.pictures{break-inside:avoid}p.note,p:has(+.pictures){break-after:avoid}.figures{grid-template-columns:1fr 1fr;gap:1rem}.pictures{grid-template-columns:repeat(auto-fit,minmax(6rem,1fr))}details:not([open]){display:none}nav{display:none}}
)";

}  // namespace

std::string chart_style() { return colors() + kChart; }

std::string page_style() { return chart_style() + kPage; }

int mode_style(std::string_view mode) {
  return mode == "local" ? 0 : mode == "sync" ? 1 : mode == "ghost" ? 2 : 3;
}

std::string mode_class(std::string_view mode) { return "m" + std::to_string(mode_style(mode)); }

}  // namespace lockstep
