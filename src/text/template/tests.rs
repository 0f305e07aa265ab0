//! Templates give what Jinja2 3.1 gives with transformers' settings. The expected texts are Jinja2's own.

use crate::text::tests::{TOKENIZER_JSON, demo, input, with_template};
use crate::text::*;
use proptest::prelude::*;
use serde_json::json;

/// Renders with a few values that all tests use.
fn jinja(template: &str) -> Result<String, String> {
    let values = json!({
        "l": [{"x": 2, "k": "b"}, {"x": 1, "k": "A"}, {"x": 3, "k": "a"}],
        "words": ["b", "A", "a", "B", "c"], "nums": [3, 1, 2, 1], "s": "a b c", "e": "", "n": null, "i": 3,
        "f": 1e-5, "g": 1e16, "h": 1.5e300, "d": {"b": 1, "a": [1, null, true, 2.5, 1e-7]},
    });
    let model =
        TextModel::from_parts(None, None, Some(template)).map_err(|error| error.to_string())?;
    let (messages, kwargs) = (json!([]), values.as_object().expect("an object"));
    let input = ChatInput {
        kwargs: Some(kwargs),
        ..input(&messages, None)
    };
    model.chat_text(&input).map_err(|error| error.to_string())
}

/// Checks `{{ expression }}` against Jinja2's result.
fn check(cases: &[(&str, &str)]) {
    for (expression, expected) in cases {
        assert_eq!(
            jinja(&format!("{{{{ {expression} }}}}")),
            Ok((*expected).to_owned()),
            "{expression}"
        );
    }
}

#[test]
fn filters_take_their_arguments_by_position_and_by_name() {
    check(&[
        (r"'a\nb'|indent(first=true)", "    a\n    b"),
        (r"'a\nb'|indent(width=2)", "a\n  b"),
        (r"'a\n\nb'|indent(4, first=true)", "    a\n\n    b"),
        (r"'a\n\nb'|indent(2, true, true)", "  a\n  \n  b"),
        (r"'a\nb'|indent('>>')", "a\n>>b"),
        ("l|sort(attribute='x')|map(attribute='k')|join", "Aba"),
        (
            "l|sort(attribute='k,x')|map(attribute='x')|list",
            "[1, 3, 2]",
        ),
        ("words|sort(reverse=true)|join(',')", "c,b,B,A,a"),
        ("words|sort(true, true)|join(',')", "c,b,a,B,A"),
        ("l|join(',', attribute='k')", "b,A,a"),
        ("nums|join(d=', ')", "3, 1, 2, 1"),
        ("words|unique(case_sensitive=true)|join(',')", "b,A,a,B,c"),
        ("words|unique(true)|join(',')", "b,A,a,B,c"),
        ("l|unique(attribute='k')|list|length", "2"),
        ("(l|max(attribute='k')).x", "2"),
        ("(l|min(attribute='x')).k", "A"),
        ("words|max(case_sensitive=true)", "c"),
        ("e|default('x', boolean=true)", "x"),
        ("e|default(default_value='x', boolean=true)", "x"),
        ("nothing|default(boolean=true) ~ n|default('q')", "None"),
        ("'aXbXc'|replace('X', '-', 1)", "a-bXc"),
        ("'aXbXc'|replace(old='X', new='-', count=1)", "a-bXc"),
        ("'xax'|trim(chars='x')", "a"),
        ("{'b': 1, 'A': 2}|dictsort(true)", "[('A', 2), ('b', 1)]"),
        (
            "{'b': 1, 'A': 2}|dictsort(by='value', reverse=true)",
            "[('A', 2), ('b', 1)]",
        ),
        (
            "nums|batch(linecount=3, fill_with='x')|list",
            "[[3, 1, 2], [1, 'x', 'x']]",
        ),
        (r"['a\nb']|map('indent', width=2)|first", "a\n  b"),
        ("'%(a)s'|format(a=3)", "3"),
    ]);
    assert!(
        jinja("{{ words|join(',', wrong=1) }}").is_err(),
        "an unknown parameter is an error"
    );
    assert!(
        jinja("{{ words|join(',', 'k', 1) }}").is_err(),
        "an argument too many is an error"
    );
}

#[test]
fn texts_that_are_no_numbers_have_the_default_of_int_and_float() {
    check(&[
        ("'x'|int", "0"),
        ("'x'|int(5)", "5"),
        ("'x'|int(default=7)", "7"),
        ("'0x1f'|int(base=16)", "31"),
        (
            "' 12 '|int ~ '12.7'|int ~ -12.9|int ~ true|int ~ n|int(3)",
            "1212-1213",
        ),
        (
            "'1_000'|int ~ ',' ~ '1e2'|int ~ ',' ~ '9999999999999999999999'|int",
            "1000,100,9999999999999999999999",
        ),
        ("'x'|float", "0.0"),
        (
            "'x'|float(2.5) ~ ''|float ~ ' 2.5 '|float ~ true|float ~ '1e3'|float",
            "2.50.02.51.01000.0",
        ),
    ]);
}

#[test]
fn texts_and_maps_are_sequences_and_functions_are_callable() {
    check(&[
        (
            "'a' is sequence, d is sequence, nums is sequence, 3 is sequence, n is sequence",
            "(True, True, True, False, False)",
        ),
        (
            "range is callable, 3 is callable, d is callable",
            "(True, False, False)",
        ),
        (
            "dict([('a', 1), ['b', 2]], c=3)",
            "{'a': 1, 'b': 2, 'c': 3}",
        ),
        ("cycler is defined and joiner is defined", "True"),
    ]);
    let joined = jinja("{% set c = joiner() %}{% for x in nums %}{{ c() }}{{ x }}{% endfor %}");
    assert_eq!(joined, Ok("3, 1, 2, 1".into()));
    let cycled = jinja(
        "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.next() }}",
    );
    assert_eq!(cycled, Ok("abaa".into()));
}

#[test]
fn texts_lists_and_maps_have_the_methods_of_python() {
    check(&[
        ("'a,b,c'.rsplit(',', 1)", "['a,b', 'c']"),
        (
            "'a  b c '.rsplit(None, 1), ' a b  c '.split(None, 1)",
            "(['a  b', 'c'], ['a', 'b  c '])",
        ),
        (
            "'a,b,c'.split(sep=',', maxsplit=1), 'a b c'.split(maxsplit=1)",
            "(['a', 'b,c'], ['a', 'b c'])",
        ),
        (
            "'a,b'.split(',', -1), ''.split(','), ''.split()",
            "(['a', 'b'], [''], [])",
        ),
        (
            "'abc'.partition('b'), 'abc'.partition('x')",
            "(('a', 'b', 'c'), ('abc', '', ''))",
        ),
        (
            "'abcb'.rpartition('b'), 'abcb'.rpartition('x')",
            "(('abc', 'b', ''), ('', '', 'abcb'))",
        ),
        (
            "'abc'.index('c'), 'abcb'.rindex('b'), 'abcabc'.find('c', 3), 'abcabc'.find('c', 1, 2)",
            "(2, 3, 5, -1)",
        ),
        (
            "'abcabc'.rfind('b', 0, 3), 'abcabc'.count('b', 3), 'aaa'.count('')",
            "(1, 1, 4)",
        ),
        (
            "'abc'.removeprefix('a'), 'abc'.removesuffix('c'), 'abc'.removesuffix('x')",
            "('bc', 'ab', 'abc')",
        ),
        (
            "'5'.zfill(3), '-5'.zfill(4), 'a'.ljust(3, '*'), 'a'.rjust(3)",
            "('005', '-005', 'a**', '  a')",
        ),
        (
            "'a'.center(4, '*'), 'ab'.center(5, '*'), 'ab'.center(6)",
            "('*a**', '**ab*', '  ab  ')",
        ),
        (
            "'12'.isdecimal(), '²'.isdecimal(), '²'.isdigit(), '½'.isdigit()",
            "(True, False, True, False)",
        ),
        (
            r#""they're 3d-printed".title(), 'aBc'.swapcase()"#,
            r#"("They'Re 3D-Printed", 'AbC')"#,
        ),
        (
            "'ab'.startswith('b', 1), 'ab'.startswith(('x', 'a')), 'ab'.endswith('a', 0, 1)",
            "(True, True, True)",
        ),
        (
            r"'a\nb\r\nc\rd\x0ce'.splitlines()",
            "['a', 'b', 'c', 'd', 'e']",
        ),
        (r"'a\nb'.splitlines(keepends=true)", r"['a\n', 'b']"),
        (r"'\x1c a \u3000'.strip()", "a"),
        (
            "d.copy() == d, nums.copy(), words.index('a')",
            "(True, [3, 1, 2, 1], 2)",
        ),
    ]);
    assert!(jinja("{{ 'abc'.index('x') }}").is_err());
    assert!(jinja("{{ nums.index(9) }}").is_err());
    assert!(jinja("{{ 'abc'.split('') }}").is_err());
}

#[test]
fn a_percent_sign_formats_texts_and_divides_numbers() {
    check(&[
        ("'%s' % 'x'", "x"),
        ("'%s %s' % ('x', f)", "x 1e-05"),
        ("('%s-%d' % (s, i))|upper", "A B C-3"),
        ("'%5.2f|' % 2.5", " 2.50|"),
        ("s % ()", "a b c"),
        (
            "7 % 3, -7 % 3, 10 % 4 % 3, 2 * 7 % 4, 7.5 % 2",
            "(1, 2, 2, 2, 1.5)",
        ),
        ("i % 2 == 1 and 'odd' or 'even'", "odd"),
    ]);
}

#[test]
fn a_plus_sign_before_a_value_changes_nothing() {
    check(&[
        ("+i", "3"),
        ("[+1, -+2]", "[1, -2]"),
        ("i - 1 - +1", "1"),
        ("1 + +2", "3"),
        ("(+i) ~ -i", "3-3"),
    ]);
    check(&[
        ("+i, -i", "(3, -3)"),
        ("+i ~ 1", "31"),
        ("+i % 2, 1", "(1, 1)"),
    ]);
    assert_eq!(
        jinja("{% set x = +1 %}{% if +x %}{{ x }}{% endif %}"),
        Ok("1".into())
    );
}

#[test]
fn numbers_print_as_in_python() {
    let expressions = "f, g, h, 1e-4, 0.00001, 123456789012345680.0, 1e15, 1e22, 1e23, 1.0, -0.0, 5e-324, 0.1 + 0.2";
    let python = "(1e-05, 1e+16, 1.5e+300, 0.0001, 1e-05, 1.2345678901234568e+17, 1000000000000000.0, 1e+22, \
                  1e+23, 1.0, -0.0, 5e-324, 0.30000000000000004)";
    check(&[
        (expressions, python),
        ("f", "1e-05"),
        ("f|string ~ '/' ~ g", "1e-05/1e+16"),
        ("'' ~ f == '1e-05'", "True"),
        (
            "'a' ~ n ~ true ~ f ~ i * 2 ~ i|string|length",
            "aNoneTrue1e-0561",
        ),
        (
            "[f ~ 'a', {'k' ~ f: f ~ 1}]",
            "['1e-05a', {'k1e-05': '1e-051'}]",
        ),
        ("'y' if f ~ '' in ['1e-05'] else 'n' ~ f", "y"),
        ("[f, n, true]|join(',')", "1e-05,None,True"),
        ("'{} {a}'.format(f, a=g)", "1e-05 1e+16"),
        ("{'a': f, 'b': (f,)}", "{'a': 1e-05, 'b': (1e-05,)}"),
        (
            "f|tojson ~ d|tojson",
            r#"1e-05{"b": 1, "a": [1, null, true, 2.5, 1e-07]}"#,
        ),
        ("'nan'|float ~ '-inf'|float", "nan-inf"),
    ]);
}

#[test]
fn tojson_has_the_options_of_json_dumps() {
    check(&[
        (
            "{'b': {'z': 1, 'a': 2}, 'a': 1}|tojson(sort_keys=true)",
            r#"{"a": 1, "b": {"a": 2, "z": 1}}"#,
        ),
        (
            "'hé😀'|tojson(ensure_ascii=true)",
            r#""h\u00e9\ud83d\ude00""#,
        ),
        ("'hé😀'|tojson(true)", r#""h\u00e9\ud83d\ude00""#),
        ("{'é': [1]}|tojson(2)", r#"{"\u00e9": [1]}"#),
        ("[1, 2]|tojson(false, 1)", "[\n 1,\n 2\n]"),
        (r"[1]|tojson(indent='\t')", "[\n\t1\n]"),
        (
            "[1]|tojson(indent=0) ~ [1]|tojson(indent=none)",
            "[\n1\n][1]",
        ),
        (
            "{'a': 1, 'b': 2}|tojson(separators=(',', ':'))",
            r#"{"a":1,"b":2}"#,
        ),
    ]);
}

#[test]
fn line_ends_of_a_template_are_line_feeds() {
    let template = "a\r\nb{{ 'x\r\ny' }}\rc{{ '\\r\\n' }}d\r\n";
    let expected = "a\nbx\ny\nc\r\nd";
    assert_eq!(
        jinja(template),
        Ok(expected.into()),
        "a template of its own"
    );
    assert_eq!(
        jinja("{% if true %}\r\na\r\n{% endif %}\r\n\r\n"),
        Ok("a\n".into())
    );
    let config = json!({"chat_template": template}).to_string();
    let named = json!({"chat_template": [{"name": "default", "template": template}]}).to_string();
    for config in [config, named] {
        let model =
            TextModel::from_parts(None, Some(config.as_bytes()), None).expect("it compiles");
        assert_eq!(
            model.chat_text(&input(&json!([]), None)),
            Ok(expected.into()),
            "tokenizer_config.json"
        );
    }
}

#[test]
fn a_loop_knows_its_last_item_whatever_it_runs_over() {
    let body =
        "%}{{ x }}{{ ',' if not loop.last }}{{ loop.length }}{{ loop.revindex }}{% endfor %}";
    for (items, expected) in [
        ("'ab'", "a,22b21"),
        ("'ab'|reverse", "b,22a21"),
        ("s if x != ' '", "a,33b,32c31"),
        ("[1, 2] if x > 1 recursive", "211"),
        ("1, 2", "1,222 21".replace(' ', "").as_str()),
        (
            "nums|map('string')",
            "3,441,432,421 41".replace(' ', "").as_str(),
        ),
        (
            "nums|select('odd')",
            "3,331,321 31".replace(' ', "").as_str(),
        ),
        ("d", "b,22a21"),
        ("nothing", ""),
    ] {
        assert_eq!(
            jinja(&format!("{{% for x in {items} {body}")),
            Ok(expected.to_owned()),
            "{items}"
        );
    }
    assert_eq!(
        jinja("{% for a, b in d.items() %}{{ a }}{{ loop.last }}{% endfor %}"),
        Ok("bFalseaTrue".into())
    );
}

#[test]
fn tags_in_texts_comments_and_raw_blocks_stay_as_they_are() {
    for (template, expected) in [
        ("{{ '{% generation %}' }}", "{% generation %}"),
        (
            "{% raw %}{{ 'a' ~ f }} {% for x in y %}{% endraw %}",
            "{{ 'a' ~ f }} {% for x in y %}",
        ),
        ("{%- raw -%} {{ +x }} {%- endraw -%}", "{{ +x }}"),
        (
            "{# {{ +x }} #}{{ '~' ~ '+' ~ '%' ~ 'for x in y' }}",
            "~+%for x in y",
        ),
        ("{{ {'a': {'b': 1}}['a']['b'] }}{{ 'a}}b' }}", "1a}}b"),
        (r"{{ 'a\x41\u0042\101\d\'\a\v' }}", "aABA\\d'\u{7}\u{b}"),
        (r"{{ '\U0001F600' }}{{ '\U00000027' }}", "😀'"),
        ("{{ 'a\\\nb' }}", "ab"),
    ] {
        assert_eq!(jinja(template), Ok(expected.to_owned()), "{template}");
    }
}

#[test]
fn results_that_are_longer_than_their_arguments_are_paid_for() {
    for expression in [
        "'a'.ljust(10**12)",
        "'a'.center(10**12)",
        "'a'.zfill(10**12)",
        "'a'|center(10**12)",
        r"'a\nb'|indent(width=10**12)",
        "('a' * 9999)|replace('a', 'b' * 99999)",
        "('a' * 9999).replace('a', 'b' * 99999)",
        "('a,' * 99999999).split(',')",
    ] {
        let error = jinja(&format!("{{{{ {expression} }}}}")).expect_err(expression);
        assert!(
            error.contains("too much time or memory"),
            "{expression}: {error}"
        );
    }
    let deep = format!("{{{{ {}1{} }}}}", "(".repeat(100_000), ")".repeat(100_000));
    assert!(jinja(&deep).is_err(), "brackets are nested too deeply");
}

/// A folder of these files.
fn folder(files: &[(&str, Value)]) -> TextFolder {
    let mut folder = TextFolder::default();
    for (name, content) in files {
        let bytes = content.as_str().map_or_else(
            || content.to_string().into_bytes(),
            |text| text.as_bytes().to_vec(),
        );
        folder.insert(name, bytes);
    }
    folder
}

#[test]
fn special_tokens_map_gives_templates_their_tokens_where_the_config_lists_no_added_tokens() {
    let map = json!({"bos_token": {"content": "<s>", "lstrip": false}, "eos_token": "</s>"});
    let template = json!("{{ bos_token }}{{ eos_token }}");
    let text = |config: Value| {
        let files = folder(&[
            ("tokenizer_config.json", config),
            ("special_tokens_map.json", map.clone()),
            ("chat_template.jinja", template.clone()),
        ]);
        let model = TextModel::from_folder(&files, None).expect("it reads");
        model
            .chat_text(&input(&json!([]), None))
            .expect("it renders")
    };
    assert_eq!(text(json!({})), "<s></s>");
    assert_eq!(text(json!({"eos_token": "<end>"})), "<s></s>");
    assert_eq!(
        text(json!({"eos_token": "<end>", "added_tokens_decoder": {}})),
        "<end>"
    );
}

#[test]
fn files_in_additional_chat_templates_are_named_templates() {
    let (messages, tools) = (json!([]), json!([{}]));
    let more = ("additional_chat_templates/tool_use.jinja", json!("tools"));
    for default in [
        ("chat_template.jinja", json!("plain")),
        ("tokenizer_config.json", json!({"chat_template": "plain"})),
    ] {
        let model =
            TextModel::from_folder(&folder(&[default, more.clone()]), None).expect("it reads");
        assert_eq!(
            model
                .chat_text(&input(&messages, None))
                .expect("it renders"),
            "plain"
        );
        assert_eq!(
            model
                .chat_text(&input(&messages, Some(&tools)))
                .expect("it renders"),
            "tools"
        );
    }
    let model = TextModel::from_folder(&folder(&[more]), Some("own")).expect("it reads");
    assert_eq!(
        model
            .chat_text(&input(&messages, Some(&tools)))
            .expect("it renders"),
        "own"
    );
}

#[test]
fn tokens_that_tokenizer_json_lacks_are_added_from_the_other_files() {
    let tokenizer = || {
        (
            "tokenizer.json",
            serde_json::from_slice(TOKENIZER_JSON).expect("it is JSON"),
        )
    };
    let added = |content: &str| json!({"content": content, "special": true});
    let ids = |file: (&str, Value)| {
        let model = TextModel::from_folder(&folder(&[tokenizer(), file]), None).expect("it reads");
        model
            .tokenizer
            .expect("a tokenizer")
            .encode("a <x1> b", false)
            .expect("it encodes")
    };
    let plain = demo()
        .tokenizer
        .expect("a tokenizer")
        .encode("a <x1> b", false)
        .expect("it encodes");
    for file in [
        (
            "tokenizer_config.json",
            json!({"added_tokens_decoder": {"5000": added("<x1>")}}),
        ),
        ("added_tokens.json", json!({"<x1>": 5000})),
        (
            "tokenizer_config.json",
            json!({"additional_special_tokens": ["<x1>"]}),
        ),
        (
            "tokenizer_config.json",
            json!({"extra_special_tokens": {"image_token": "<x1>"}}),
        ),
        ("tokenizer_config.json", json!({"pad_token": "<x1>"})),
        (
            "special_tokens_map.json",
            json!({"pad_token": added("<x1>")}),
        ),
    ] {
        let ids = ids(file.clone());
        assert!(
            ids.len() < plain.len() && ids.iter().any(|id| !plain.contains(id)),
            "{file:?}: {ids:?}"
        );
    }
}

/// As in transformers 5: beside a tokenizer.json, its post-processor alone decides.
#[test]
fn add_bos_token_of_a_folder_changes_no_prompt() {
    let ids = |config: Value| {
        let tokenizer = (
            "tokenizer.json",
            serde_json::from_slice(TOKENIZER_JSON).expect("it is JSON"),
        );
        let files = folder(&[tokenizer, ("tokenizer_config.json", config)]);
        let model = TextModel::from_folder(&files, None).expect("it reads");
        model
            .tokenizer
            .expect("a tokenizer")
            .encode("Hello", true)
            .expect("it encodes")
    };
    assert_eq!(
        ids(json!({"add_bos_token": true, "bos_token": "<|im_start|>"})),
        ids(json!({}))
    );
}

#[test]
fn a_template_that_does_not_compile_leaves_the_other_ones_usable() {
    let files = folder(&[
        ("chat_template.jinja", json!("plain")),
        (
            "additional_chat_templates/tool_use.jinja",
            json!("{% if %}"),
        ),
    ]);
    let model = TextModel::from_folder(&files, None).expect("the model loads");
    assert_eq!(
        model
            .chat_text(&input(&json!([]), None))
            .expect("it renders"),
        "plain"
    );
    let fault = model
        .chat_text(&input(&json!([]), Some(&json!([{}]))))
        .expect_err("it does not compile");
    assert!(
        fault.to_string().contains("chat template failed"),
        "{fault}"
    );
}

/// As Qwen 3's template does with thoughts, for a tokenizer whose tags are special tokens.
#[test]
fn a_template_finds_special_strings_in_a_message_and_the_prompt_is_the_text_that_is_shown() {
    let template = "{% for m in messages %}{% set content = m.content %}{% if '<|im_end|>' in content %}\
        {% set thought = content.split('<|im_end|>')[0].rstrip('\\n').split('<|im_start|>')[-1].lstrip('\\n') %}\
        [{{ thought }}]{% set content = content.split('<|im_end|>')[-1].lstrip('\\n') %}{% endif %}\
        {% if content.startswith('<|im_start|>') %}starts{% endif %}{{ content|trim }}<|im_end|>{% endfor %}";
    let model = with_template(template);
    let tokenizer = model.tokenizer.clone().expect("a tokenizer");
    let end = tokenizer.id_of("<|im_end|>").expect("an end token");
    let text = "<|im_start|>\nhmm\n<|im_end|>\n\nAnswer";
    for (content, shown) in [
        (text, "[hmm]Answer<|im_end|>"),
        ("<|im_start|>x", "starts<|im_start|>x<|im_end|>"),
        (" <|im_start|> ", "<|im_start|><|im_end|>"),
    ] {
        let messages = json!([{"role": "user", "content": content}]);
        assert_eq!(
            model.chat_text(&input(&messages, None)),
            Ok(shown.into()),
            "what is shown of {content:?}"
        );
        let ids = model
            .chat_prompt(&input(&messages, None))
            .expect("it encodes");
        let bytes: Vec<u8> = ids
            .iter()
            .flat_map(|id| tokenizer.token_bytes(*id, None))
            .collect();
        assert_eq!(
            String::from_utf8(bytes).as_deref(),
            Ok(shown),
            "the prompt of {content:?}"
        );
        let ends = ids
            .iter()
            .filter(|id| tokenizer.is_special(**id))
            .collect::<Vec<_>>();
        assert_eq!(
            ends,
            [&end],
            "only the template's token is special in the prompt of {content:?}"
        );
    }
}

/// What Jinja2 renders of several hundred templates, with null for an error. `.ci/templates` compares the file with
/// Jinja2 itself.
#[test]
fn every_template_of_the_list_renders_as_in_jinja2() {
    let file = include_str!("../../../tests/data/jinja2.json");
    let file: Value = serde_json::from_str(file).expect("it is JSON");
    let kwargs = file["values"].as_object().expect("an object");
    for case in file["templates"].as_array().expect("a list") {
        let [template, expected] = [0, 1].map(|index| case[index].as_str());
        let messages = json!([]);
        let input = ChatInput {
            kwargs: Some(kwargs),
            unix_time: 1_753_522_876,
            ..input(&messages, None)
        };
        let text = TextModel::from_parts(None, None, template)
            .ok()
            .and_then(|model| model.chat_text(&input).ok());
        assert_eq!(text.as_deref(), expected, "{}", case[0]);
    }
}

/// What templates consist of, and pieces of it.
const FRAGMENTS: [&str; 40] = [
    "{{",
    "}}",
    "{%",
    "%}",
    "{#",
    "#}",
    "{%-",
    "-%}",
    "{%+",
    "+%}",
    "{{-",
    "-}}",
    "for x in ",
    "if ",
    "else",
    "endfor",
    "set a = ",
    "raw",
    "endraw",
    "generation",
    "not ",
    "in ",
    "is ",
    "x",
    "3",
    "'a'",
    "\"\\n\"",
    "'",
    "\\",
    "+",
    "-",
    "~",
    "%",
    "*",
    "**",
    "//",
    ",",
    "(",
    ")",
    "é",
];

proptest! {
    /// A template may be wrong, but it must not stop the server.
    #[test]
    fn a_source_of_any_fragments_is_read_without_a_panic(
        fragments in proptest::collection::vec(proptest::sample::select(FRAGMENTS.to_vec()), 0..24),
    ) {
        let source = fragments.concat();
        for source in [source.clone(), format!("{{{{ {source} }}}}"), format!("{{% for x in {source} %}}")] {
            let _ = jinja(&source);
        }
    }
}
