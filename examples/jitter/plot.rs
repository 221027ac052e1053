//! Two panels, written as SVG by hand.

use std::fmt::Write;

use super::occ::Mean;

const COLORS: [&str; 5] = ["#888", "#c33", "#d90", "#27c", "#293"];
const WIDTH: f64 = 420.0;
const HEIGHT: f64 = 300.0;

/// Time and writes over the number of clients, a curve for each kind.
pub(crate) fn svg(clients: &[u32], curves: &[(&str, Vec<Mean>)]) -> String {
    let mut svg = String::from(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 1040 400\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"1040\" height=\"400\" fill=\"#fff\"/>\n",
    );
    panel(&mut svg, 70.0, "time until all have succeeded, ms (log)", clients, curves, |mean| mean.millis);
    panel(&mut svg, 580.0, "writes (log)", clients, curves, |mean| mean.writes);
    svg.push_str("</svg>\n");
    svg
}

fn panel(
    svg: &mut String,
    left: f64,
    title: &str,
    clients: &[u32],
    curves: &[(&str, Vec<Mean>)],
    value: fn(&Mean) -> f64,
) {
    let most = f64::from(clients.iter().copied().max().unwrap_or(1));
    let x = |clients: u32| left + f64::from(clients) / most * WIDTH;
    // Decades from 10 to 1,000,000.
    let y = |value: f64| 40.0 + HEIGHT - (value.log10() - 1.0) / 5.0 * HEIGHT;
    let _ = writeln!(svg, "<text x=\"{left}\" y=\"24\" font-size=\"14\">{title}</text>");
    for decade in 1..=6 {
        let at = y(10f64.powi(decade));
        let right = left + WIDTH;
        let _ = writeln!(svg, "<path d=\"M{left} {at:.1}H{right}\" stroke=\"#ddd\"/>");
        let _ =
            writeln!(svg, "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">10^{decade}</text>", left - 6.0, at + 4.0);
    }
    for clients in clients.iter().filter(|clients| **clients % 50 == 0) {
        let _ = writeln!(svg, "<text x=\"{:.1}\" y=\"358\" text-anchor=\"middle\">{clients}</text>", x(*clients));
    }
    let _ = writeln!(svg, "<text x=\"{}\" y=\"378\" text-anchor=\"middle\">clients</text>", left + WIDTH / 2.0);
    for (row, ((name, means), color)) in curves.iter().zip(COLORS).enumerate() {
        let points: Vec<_> = clients
            .iter()
            .zip(means)
            .map(|(clients, mean)| format!("{:.1},{:.1}", x(*clients), y(value(mean))))
            .collect();
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{color}\" stroke-width=\"2\"/>",
            points.join(" ")
        );
        let below = 60.0 + 16.0 * row as f64;
        let _ = writeln!(svg, "<text x=\"{}\" y=\"{below}\" fill=\"{color}\">{name}</text>", left + 10.0);
    }
}
