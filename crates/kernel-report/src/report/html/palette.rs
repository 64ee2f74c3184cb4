//! Colours of the page, for light and for dark.
//!
//! Charts are drawn with the light colours. The style sheet replaces each by a variable, through
//! selectors on the SVG's own `fill` and `stroke` attributes, so that one drawing serves both.

use std::fmt::Write;

use plotters::style::RGBColor;

/// A colour by what it stands for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Role {
    /// Name of the variable.
    pub(super) name: &'static str,
    /// On the light background.
    pub(super) light: RGBColor,
    /// On the dark background.
    pub(super) dark: RGBColor,
    /// Least contrast with the background (WCAG 2.2): 4.5 for text, 3 for what must be seen in a
    /// chart, 1 for decoration.
    pub(super) contrast: f64,
}

const fn role(name: &'static str, light: [u8; 3], dark: [u8; 3], contrast: f64) -> Role {
    Role {
        name,
        light: RGBColor(light[0], light[1], light[2]),
        dark: RGBColor(dark[0], dark[1], dark[2]),
        contrast,
    }
}

/// Background.
pub(super) const PAPER: Role = role("paper", [0xff, 0xff, 0xff], [0x16, 0x18, 0x1d], 1.0);
/// Text.
pub(super) const INK: Role = role("ink", [0x1b, 0x1d, 0x22], [0xe8, 0xea, 0xee], 4.5);
/// Text of less weight.
pub(super) const MUTED: Role = role("muted", [0x55, 0x5b, 0x66], [0xa9, 0xb0, 0xbc], 4.5);
/// Grid lines and borders.
pub(super) const GRID: Role = role("grid", [0xd9, 0xdc, 0xe1], [0x38, 0x3d, 0x47], 1.0);
/// Arm A. Blue and vermilion stay apart for the colour-blind (Okabe and Ito 2008).
pub(super) const A: Role = role("a", [0x00, 0x72, 0xb2], [0x56, 0xb4, 0xe9], 3.0);
/// Arm B.
pub(super) const B: Role = role("b", [0xd5, 0x5e, 0x00], [0xff, 0x9d, 0x4d], 3.0);
/// What lies within the noise.
pub(super) const NOISE: Role = role("noise", [0xec, 0xee, 0xf1], [0x2a, 0x2e, 0x36], 1.0);

/// All roles.
pub(super) const ROLES: [Role; 7] = [PAPER, INK, MUTED, GRID, A, B, NOISE];

/// The style sheet's part that comes from the palette.
pub(super) fn style() -> String {
    let variables = |colour: fn(&Role) -> RGBColor| {
        ROLES.iter().fold(String::new(), |mut text, role| {
            let _ = write!(text, "--{}:{};", role.name, hex(colour(role)));
            text
        })
    };
    let (light, dark) = (variables(|role| role.light), variables(|role| role.dark));
    let mut style = format!(
        ":root{{color-scheme:light dark;{light}}}\n\
         @media (prefers-color-scheme:dark){{:root{{{dark}}}}}\n\
         @media print{{:root{{color-scheme:light;{light}}}}}\n"
    );
    for role in ROLES {
        let (name, colour) = (role.name, hex(role.light));
        let _ = writeln!(
            style,
            "svg [fill=\"{colour}\"]{{fill:var(--{name})}}svg [stroke=\"{colour}\"]{{stroke:var(--{name})}}"
        );
    }
    style
}

/// As the SVG writes it.
fn hex(RGBColor(red, green, blue): RGBColor) -> String {
    format!("#{red:02X}{green:02X}{blue:02X}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Relative luminance (WCAG 2.2).
    fn luminance(RGBColor(red, green, blue): RGBColor) -> f64 {
        let linear = |channel: u8| {
            let value = f64::from(channel) / 255.0;
            if value <= 0.04045 {
                value / 12.92
            } else {
                ((value + 0.055) / 1.055).powf(2.4)
            }
        };
        0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue)
    }

    fn contrast(one: RGBColor, other: RGBColor) -> f64 {
        let (one, other) = (luminance(one) + 0.05, luminance(other) + 0.05);
        one.max(other) / one.min(other)
    }

    #[test]
    fn text_and_lines_stand_out_on_both_backgrounds() {
        assert!((contrast(PAPER.light, RGBColor(0, 0, 0)) - 21.0).abs() < 1e-9);
        for role in ROLES {
            for (colour, paper) in [(role.light, PAPER.light), (role.dark, PAPER.dark)] {
                let found = contrast(colour, paper);
                assert!(found >= role.contrast, "{}: {found:.2}", role.name);
            }
        }
    }

    #[test]
    fn no_two_roles_share_a_colour_of_the_drawing() {
        for (index, role) in ROLES.iter().enumerate() {
            assert!(
                ROLES[index + 1..]
                    .iter()
                    .all(|other| other.light != role.light)
            );
        }
    }
}
