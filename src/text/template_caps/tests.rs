//! What small templates show.

use crate::text::{TemplateCaps, TextModel};

fn caps(template: &str) -> TemplateCaps {
    let text = TextModel::from_parts(None, None, Some(template)).expect("a template");
    text.template.as_ref().expect("a template").caps()
}

#[test]
fn a_template_that_only_writes_contents_shows_nothing_else() {
    let plain = "{% for message in messages %}{% if message.role == 'system' %}{{ raise_exception('No system') }}\
                 {% endif %}{{ message.content }}{% endfor %}";
    assert_eq!(
        caps(plain),
        TemplateCaps {
            supports_string_content: true,
            ..TemplateCaps::default()
        }
    );
}

#[test]
fn what_a_template_shows_of_a_conversation_is_found() {
    let all = "{{ reasoning_effort }}{% if tools %}{{ tools|tojson }}{% endif %}{% for message in messages %}\
               {% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}\
               {{ part.text }}{% endfor %}{% endif %}{{ message.reasoning_content }}{% for call in message.tool_calls \
               %}{{ call.function.name }}{{ call.function.arguments|tojson }}{% endfor %}{% endfor %}";
    assert_eq!(
        caps(all),
        TemplateCaps {
            supports_string_content: true,
            supports_typed_content: true,
            supports_tools: true,
            supports_tool_calls: true,
            supports_parallel_tool_calls: true,
            supports_object_arguments: true,
            supports_system_role: true,
            supports_preserve_reasoning: true,
            supports_reasoning_effort: true,
        }
    );
    let first = caps(&all.replace("message.tool_calls", "(message.tool_calls or [])[:1]"));
    assert!(first.supports_tool_calls && !first.supports_parallel_tool_calls);
}

#[test]
fn whether_parts_are_shown_is_found() {
    let shows = |template: &str| {
        let text = TextModel::from_parts(None, None, Some(template)).expect("a template");
        let template = text.template.as_ref().expect("a template");
        template.shows_parts()
    };
    let of_text = "{% for m in messages %}{% if m.content is string %}{{ m.content }}";
    // In a loop, in a macro, and without the space around them.
    for loops in [
        "{% for p in m.content %}{{ p.text }}{% endfor %}",
        "{% macro all(content) %}{% for p in content %}{{ p['text'] }}{% endfor %}{% endmacro %}{{ all(m.content) }}",
        "{% for p in m.content %}{{ p.text|trim }} {% endfor %}",
    ] {
        let template = format!("{of_text}{{% else %}}{loops}{{% endif %}}{{% endfor %}}");
        assert!(shows(&template), "{loops}");
    }
    // The list as such, one part only, nothing, refused.
    for other in [
        "{{ m.content }}",
        "{{ m.content|tojson }}",
        "{{ m.content[0].text }}",
        "",
        "{{ raise_exception('no') }}",
    ] {
        let template = format!("{of_text}{{% else %}}{other}{{% endif %}}{{% endfor %}}");
        assert!(!shows(&template), "{other}");
    }
}

#[test]
fn whether_images_of_results_are_shown_is_found() {
    let shows = |template: &str| {
        let text = TextModel::from_parts(None, None, Some(template)).expect("a template");
        let template = text.template.as_ref().expect("a template");
        template.shows_images_of_results()
    };
    let parts = |image: &str| {
        format!(
            "{{% for m in messages %}}{{% if m.content is string %}}{{{{ m.content }}}}{{% else %}}\
             {{% for p in m.content %}}{image} {{% endfor %}}{{% endif %}}{{% endfor %}}"
        )
    };
    assert!(shows(&parts(
        "{% if p.type == 'image' %}<image>{% else %}{{ p.text }}{% endif %}"
    )));
    // Left out, but for a space; a list as such; refused.
    assert!(!shows(&parts("{{ p.text }}")));
    assert!(!shows("{% for m in messages %}{{ m.content }}{% endfor %}"));
    assert!(!shows(
        "{% for m in messages %}{{ m.content|tojson }}{% endfor %}"
    ));
    assert!(!shows(&parts(
        "{% if p.type != 'text' %}{{ raise_exception('no') }}{% endif %}{{ p.text }}"
    )));
}
