//! [`parsers`] declares the parsers of a kind: an enum, and for each of its values the format that it stands for. A
//! format has the names of its parser and the templates by which it is detected, so that nothing else lists them.
//! `docs/dev/parsers-and-vllm.md` has how far the parsers agree with vLLM's tests.

/// Declares an enum of parsers from the format of each. A chat template is of the first format in this list that it
/// matches; the value marked with `#[default]` is for templates that match none.
macro_rules! parsers {
    (
        $(#[$about:meta])*
        $kind:literal $name:ident: $format:ty;
        $($(#[$note:meta])* $parser:ident = $value:expr;)*
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub enum $name {
            $($(#[$note])* $parser,)*
        }

        impl $name {
            const ALL: &[Self] = &[$(Self::$parser),*];

            /// The names that [`FromStr`](std::str::FromStr) accepts, without vLLM's equivalents.
            pub const NAMES: [&str; Self::ALL.len()] = [$($value.names[0]),*];

            /// The format that it reads.
            pub(super) const fn format(self) -> &'static $format {
                match self {
                    $(Self::$parser => const { &$value },)*
                }
            }

            /// All names of this parser: ours, then vLLM's.
            pub const fn names(self) -> &'static [&'static str] {
                self.format().names
            }

            /// Every parser.
            pub fn all() -> impl Iterator<Item = Self> {
                Self::ALL.iter().copied()
            }

            /// Detects the parser from a chat template's text; `None` if it has the marks of no known format.
            pub(crate) fn detect(template: &str) -> Option<Self> {
                Self::all().find(|parser| $crate::text::answer::registry::matches(template, parser.format().templates))
            }
        }

        impl std::str::FromStr for $name {
            type Err = String;

            /// Accepts our names and vLLM's equivalents.
            fn from_str(name: &str) -> Result<Self, String> {
                Self::all().find(|parser| parser.names().contains(&name)).ok_or_else(|| {
                    format!("unknown {} parser `{name}`; expected one of {}", $kind, Self::NAMES.join(", "))
                })
            }
        }
    };
}

pub(super) use parsers;

/// Whether a template has all texts of one of these groups.
pub(super) fn matches(template: &str, groups: &[&[&str]]) -> bool {
    groups
        .iter()
        .any(|texts| texts.iter().all(|text| template.contains(text)))
}
