//! A self-contained page: findings, pictures, tables.

const STYLE: &str = "\
body { font: 15px/1.5 sans-serif; color: #282828; max-width: 1240px; margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.4em; } h2 { font-size: 1.15em; margin-top: 2em; }
svg { max-width: 100%; height: auto; }
table { border-collapse: collapse; }
th, td { padding: .2em .9em; text-align: right; border-bottom: 1px solid #dedede; font-variant-numeric: tabular-nums; }
th:first-child, td:first-child { text-align: left; }";

/// Returns the page. `pictures` are SVG texts of this crate and stay unescaped; all other text is
/// escaped.
pub(super) fn html(
    title: &str,
    findings: &[String],
    pictures: &[&str],
    tables: &[(&str, Vec<Vec<String>>)],
) -> String {
    let title = escaped(title);
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head><meta charset=\"utf-8\"><title>{title}</title>\n<style>\n{STYLE}\n</style></head>\n\
         <body>\n<h1>Traffic of the interconnect</h1>\n<p>{title}</p>\n<ul>\n"
    );
    findings.iter().for_each(|finding| page += &format!("<li>{}</li>\n", escaped(finding)));
    page += "</ul>\n";
    pictures.iter().for_each(|picture| page += &format!("<p>{picture}</p>\n"));
    for (name, rows) in tables {
        page += &format!("<h2>{}</h2>\n<table>\n", escaped(name));
        for (index, row) in rows.iter().enumerate() {
            let cell = if index == 0 { "th" } else { "td" };
            let cells: String =
                row.iter().map(|text| format!("<{cell}>{}</{cell}>", escaped(text))).collect();
            page += &format!("<tr>{cells}</tr>\n");
        }
        page += "</table>\n";
    }
    page + "</body>\n</html>\n"
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_text() {
        let rows = vec![vec!["<b>".to_owned()], vec!["a & b".to_owned()]];
        let page = html("<script>", &["x < y".into()], &["<svg></svg>"], &[("T", rows)]);
        assert!(!page.contains("<script>") && page.contains("x &lt; y") && page.contains("<svg></svg>"));
        assert!(page.contains("<th>&lt;b&gt;</th>") && page.contains("<td>a &amp; b</td>"));
    }
}
