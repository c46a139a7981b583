//! Pictures as PNG, rendered from their SVG, so that both show the same.

use resvg::{
    tiny_skia::{Pixmap, Transform},
    usvg::{Options, Tree},
};

use super::chart::{DrawError, wrong};

/// Renders an SVG as PNG of twice the size, so that it is sharp on fine screens.
///
/// # Errors
/// The machine has no font, or the text is no SVG.
pub fn png(svg: &str) -> Result<Vec<u8>, DrawError> {
    const ENLARGED: f32 = 2.0;
    let mut options = Options::default();
    let fonts = options.fontdb_mut();
    fonts.load_system_fonts();
    let any = fonts.faces().next().and_then(|face| face.families.first()).map(|family| family.0.clone());
    let any = any.ok_or_else(|| wrong("this machine has no font; install one (fonts-dejavu-core)"))?;
    // These are the fonts of the pictures; without them any font is used.
    let preferred = ["DejaVu Sans", "Liberation Sans", "Noto Sans", "Arial"];
    let known = |name: &&str| fonts.faces().any(|face| face.families.iter().any(|family| family.0 == *name));
    let family = preferred.into_iter().find(known).map_or(any, str::to_owned);
    fonts.set_sans_serif_family(family);
    let tree = Tree::from_str(svg, &options).map_err(wrong)?;
    let size = tree.size();
    let pixels = |length: f32| (length * ENLARGED).ceil() as u32;
    let mut picture = Pixmap::new(pixels(size.width()), pixels(size.height()))
        .ok_or_else(|| wrong("a picture without size"))?;
    resvg::render(&tree, Transform::from_scale(ENLARGED, ENLARGED), &mut picture.as_mut());
    picture.encode_png().map_err(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_svg_becomes_a_picture_of_twice_its_size_with_its_words_in_it() {
        let svg = |words: &str| {
            format!(
                r#"<svg xmlns="http://www.w3.org/2000/svg" width="60" height="20"><rect width="60" height="20" fill="white"/><text x="2" y="15" font-family="sans-serif" font-size="14">{words}</text></svg>"#
            )
        };
        let (one, other) = (png(&svg("WWW")).unwrap(), png(&svg("")).unwrap());
        assert_eq!(one[..8], *b"\x89PNG\r\n\x1a\n");
        assert_eq!((one[16..20].to_vec(), one[20..24].to_vec()), (vec![0, 0, 0, 120], vec![0, 0, 0, 40]));
        assert_ne!(one, other, "the words are drawn");
        assert!(png("no picture").is_err());
    }
}
