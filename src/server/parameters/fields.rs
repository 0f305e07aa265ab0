//! The macro that declares groups of request fields. `table` has the groups of OpenAI's, vLLM's and llama.cpp's
//! requests; other APIs have theirs beside their translation.

/// Declares a group with one field per row: `/// sentence`, name, type of the value, and kind. `with` adds the fields
/// of other groups; a group's own row hides a field of the same name there. `#[expect(dead_code)]` marks fields that
/// are checked and not used.
///
/// `=> name = kind` after a row is another name of the same field, with the kind of its values there. A request may use
/// any of the names; two that disagree are refused.
///
/// `refuses` and `ignores` list fields of other servers, each with what to use instead or why nothing is lost. Ignoring
/// a field that would change what is generated would give a wrong answer or bypass a restriction, so it is refused
/// until it is implemented.
macro_rules! fields {
    (
        $(#[doc = $about:literal])+
        $group:ident $(with $($part:ident: $inner:ident),+)? {
            $($(#[doc = $sentence:literal])+ $(#[expect($lint:ident)])? $name:ident: $value:ty = $presence:expr
                $(=> $alias:ident = $other:expr)*,)*
        }
        $(refuses { $($refused:ident: $instead:literal,)+ })?
        $(ignores { $($ignored:ident: $why:literal,)+ })?
    ) => {
        $(#[doc = $about])+
        pub(crate) struct $group {
            $($(#[doc = $sentence])+ $(#[expect($lint, reason = "checked and not used")])? pub(crate) $name: $value,)*
            $($(pub(crate) $part: $inner,)+)?
        }

        impl $crate::server::parameters::kind::Group for $group {
            const NAME: &'static str = stringify!($group);

            fn take(
                map: &mut serde_json::Map<String, serde_json::Value>,
                at: &str,
                bounds: &$crate::server::parameters::kind::Bounds,
            ) -> Result<Self, $crate::server::wire::error::ApiError> {
                Ok(Self {
                    $($name: {
                        use $crate::server::parameters::kind::{Given, field_name};
                        let given = Given::take(map, at, field_name(stringify!($name)), &$presence, bounds)?;
                        $(let given = given.or(map, at, field_name(stringify!($alias)), &$other, bounds)?;)*
                        given.value
                    },)*
                    $($($part: $inner::take(map, at, bounds)?,)+)?
                })
            }

            fn rows(
                bounds: &$crate::server::parameters::kind::Bounds,
            ) -> Vec<$crate::server::parameters::kind::Row> {
                use $crate::server::parameters::kind;
                let own = vec![
                    $(kind::row(
                        (Self::NAME, kind::field_name(stringify!($name))),
                        &[$($sentence),+],
                        &$presence,
                        bounds,
                    ),
                    $(kind::alias_row(
                        (Self::NAME, kind::field_name(stringify!($alias))),
                        kind::field_name(stringify!($name)),
                        &$other,
                        bounds,
                    ),)*)*
                ];
                kind::joined(own, vec![$($($inner::rows(bounds),)+)?])
            }

            fn foreign() -> Vec<$crate::server::parameters::kind::Foreign> {
                use $crate::server::parameters::kind::Foreign;
                let refused = [$($((stringify!($refused), $instead),)+)?].map(Foreign::refused);
                let ignored = [$($((stringify!($ignored), $why),)+)?].map(Foreign::ignored);
                let parts: Vec<Vec<Foreign>> = vec![$($($inner::foreign(),)+)?];
                let own: &[&str] = &[$(
                    $crate::server::parameters::kind::field_name(stringify!($name)),
                    $($crate::server::parameters::kind::field_name(stringify!($alias)),)*
                )*];
                let all = refused.into_iter().chain(ignored).chain(parts.into_iter().flatten());
                all.filter(|field| !own.contains(&field.name)).collect()
            }
        }
    };
}

pub(crate) use fields;
