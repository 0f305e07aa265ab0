//! No circles of calls between the files of one type.
//!
//! A type whose `impl` blocks are spread over several files is easy to read if the files have an order: methods of one
//! file call those of the next. Where the files of a type call each other in a circle, they are one long file in
//! pieces: none can be understood without the others. Imports do not show that, because a method needs none.
//!
//! Counted are calls in methods of a type by `self.method(…)`, `Self::method` and, without a path before it,
//! `Type::method`; also inside closures and the arguments of macros. Not seen are calls of a value with another name
//! (`scheduler.method(…)`, also in functions that are no methods), calls in default methods of a trait, and those in
//! the body of a macro. An `impl` belongs to the type of its name that is defined nearest, by modules.

use super::judge;
use super::reader::{Source, root};
use super::tokens::{attribute_end, is_of_tests, is_sign, is_word, item_end, shipped};
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;

/// Circles that are there still, one a line. None may grow, and none is added.
const CIRCLES: &str = "tests/tidy/circles.txt";

/// An `impl` block with its methods.
struct Block {
    type_name: String,
    path: String,
    methods: Vec<Method>,
}

struct Method {
    name: String,
    calls: BTreeSet<String>,
}

/// What the files say of types.
#[derive(Default)]
struct Files {
    /// Name of a type → the files that define one.
    types: BTreeMap<String, Vec<String>>,
    blocks: Vec<Block>,
}

/// Files of a type that call each other in a circle.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Circle {
    type_name: String,
    paths: BTreeSet<String>,
}

/// A file → the files whose methods it calls, each with such a call.
type Graph = BTreeMap<String, BTreeMap<String, String>>;

impl Files {
    fn read<'a>(sources: impl IntoIterator<Item = &'a Source>) -> Self {
        let mut files = Self::default();
        for source in sources {
            let tree = source.text.parse::<TokenStream>();
            files.read_items(
                &source.path,
                tree.unwrap_or_else(|error| panic!("{}: {error}", source.path)),
            );
        }
        files
    }

    /// Reads the items of a file or of a module within one.
    fn read_items(&mut self, path: &str, stream: TokenStream) {
        let trees: Vec<TokenTree> = stream.into_iter().collect();
        for item in items(&trees) {
            if let Some(at) = position(item, &["struct", "enum", "union"])
                && let Some(TokenTree::Ident(name)) = item.get(at + 1)
            {
                let types = self.types.entry(name.to_string()).or_default();
                types.push(path.to_owned());
            }
            let Some(TokenTree::Group(body)) = item.last() else {
                continue;
            };
            if let Some(type_name) = implemented(item) {
                self.blocks.push(Block {
                    methods: methods(&type_name, body.stream()),
                    type_name,
                    path: path.to_owned(),
                });
            } else if position(item, &["mod"]).is_some() {
                self.read_items(path, body.stream());
            }
        }
    }

    /// The blocks of each type, by the file that defines it and its name.
    fn by_type(&self) -> BTreeMap<(&str, &str), Vec<&Block>> {
        let mut types: BTreeMap<(&str, &str), Vec<&Block>> = BTreeMap::new();
        for block in &self.blocks {
            let Some(places) = self.types.get(&block.type_name) else {
                continue;
            };
            let nearest = places
                .iter()
                .max_by_key(|place| shared_parts(place, &block.path));
            let place = nearest.expect("a type has a place");
            let blocks = types.entry((place, &block.type_name)).or_default();
            blocks.push(block);
        }
        types
    }

    fn circles(&self) -> Vec<(Circle, Graph)> {
        let mut circles = Vec::new();
        for ((_, type_name), blocks) in self.by_type() {
            let graph = graph(&blocks);
            for paths in components(&graph) {
                let type_name = type_name.to_owned();
                circles.push((Circle { type_name, paths }, graph.clone()));
            }
        }
        circles
    }
}

impl Circle {
    /// `Scheduler in src/engine/scheduler: admit.rs mod.rs`.
    fn parse(line: &str) -> Option<Self> {
        let (place, names) = line.split_once(": ")?;
        let (type_name, folder) = place.split_once(" in ")?;
        let paths = names.split(' ').map(|name| format!("{folder}/{name}"));
        Some(Self {
            type_name: type_name.to_owned(),
            paths: paths.collect(),
        })
    }

    fn line(&self) -> String {
        let first = self.paths.first().expect("a circle has files");
        let holds_all = |folder: &str| {
            let mut paths = self.paths.iter();
            paths.all(|path| {
                path.strip_prefix(folder)
                    .is_some_and(|rest| rest.starts_with('/'))
            })
        };
        let mut folder = first.as_str();
        while !holds_all(folder) {
            folder = folder.rsplit_once('/').map_or("", |(parent, _)| parent);
        }
        let names = self.paths.iter().map(|path| &path[folder.len() + 1..]);
        let names: Vec<&str> = names.collect();
        format!("{} in {folder}: {}", self.type_name, names.join(" "))
    }

    fn is_part_of(&self, other: &Self) -> bool {
        self.type_name == other.type_name && self.paths.is_subset(&other.paths)
    }
}

/// The items among these trees, each up to its braces or `;`, without those for tests.
fn items(mut trees: &[TokenTree]) -> impl Iterator<Item = &[TokenTree]> {
    let mut is_test = false;
    std::iter::from_fn(move || {
        while let Some(end) = attribute_end(trees) {
            is_test |= is_of_tests(&trees[..end]);
            trees = &trees[end..];
        }
        if trees.is_empty() {
            return None;
        }
        let (item, rest) = trees.split_at(item_end(trees));
        trees = rest;
        let skipped = std::mem::take(&mut is_test);
        Some(if skipped { &[] } else { item })
    })
}

/// Where one of the words stands first.
fn position(trees: &[TokenTree], words: &[&str]) -> Option<usize> {
    let is_one = |tree| words.iter().any(|word| is_word(Some(tree), word));
    trees.iter().position(is_one)
}

/// The name of the type that an `impl` block is for.
fn implemented(item: &[TokenTree]) -> Option<String> {
    let start = usize::from(is_word(item.first(), "unsafe"));
    if !is_word(item.get(start), "impl") {
        return None;
    }
    let mut header = &item[start + 1..item.len() - 1];
    header = &header[angles_end(header)..];
    if let Some(at) = position(header, &["where"]) {
        header = &header[..at];
    }
    let is_for = |at: &usize| is_word(header.get(*at), "for") && !is_sign(header.get(at + 1), '<');
    if let Some(at) = (0..header.len()).find(is_for) {
        header = &header[at + 1..];
    }
    let mut name = None;
    for tree in header {
        match tree {
            TokenTree::Ident(ident) => name = Some(ident.to_string()),
            TokenTree::Punct(punct) if punct.as_char() == ':' => {}
            _ => break,
        }
    }
    name
}

/// Number of trees of the list in angle brackets that begins here, if one does.
fn angles_end(trees: &[TokenTree]) -> usize {
    let mut depth = 0;
    for (at, tree) in trees.iter().enumerate() {
        let is_arrow = at > 0 && is_sign(trees.get(at - 1), '-');
        if is_sign(Some(tree), '<') {
            depth += 1;
        } else if is_sign(Some(tree), '>') && !is_arrow {
            depth -= 1;
        }
        if depth == 0 {
            return if at == 0 { 0 } else { at + 1 };
        }
    }
    trees.len()
}

/// The methods of an `impl` block's body.
fn methods(type_name: &str, body: TokenStream) -> Vec<Method> {
    let trees: Vec<TokenTree> = body.into_iter().collect();
    let mut methods = Vec::new();
    for item in items(&trees) {
        if let Some(at) = position(item, &["fn"])
            && let Some(TokenTree::Ident(name)) = item.get(at + 1)
        {
            let mut calls = BTreeSet::new();
            add_calls(type_name, item, &mut calls);
            let name = name.to_string();
            methods.push(Method { name, calls });
        }
    }
    methods
}

fn add_calls(type_name: &str, trees: &[TokenTree], calls: &mut BTreeSet<String>) {
    for at in 0..trees.len() {
        if let TokenTree::Group(group) = &trees[at] {
            let inner: Vec<TokenTree> = group.stream().into_iter().collect();
            add_calls(type_name, &inner, calls);
        }
        calls.extend(call(
            type_name,
            &trees[at..],
            at > 0 && is_sign(trees.get(at - 1), ':'),
        ));
    }
}

/// The method that is called here, if one is.
fn call(type_name: &str, trees: &[TokenTree], is_in_path: bool) -> Option<String> {
    let is_path = |from: usize| is_sign(trees.get(from), ':') && is_sign(trees.get(from + 1), ':');
    if is_word(trees.first(), "self") && is_sign(trees.get(1), '.') {
        let is_call = is_parentheses(trees.get(3)) || is_path(3);
        return is_call.then(|| trees[2].to_string());
    }
    let is_type =
        is_word(trees.first(), "Self") || is_word(trees.first(), type_name) && !is_in_path;
    match trees.get(3) {
        Some(TokenTree::Ident(name)) if is_type && is_path(1) => Some(name.to_string()),
        _ => None,
    }
}

fn is_parentheses(tree: Option<&TokenTree>) -> bool {
    matches!(tree, Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Parenthesis)
}

/// Number of folders and names that two paths have in common.
fn shared_parts(left: &str, right: &str) -> usize {
    let parts = |path: &str| -> Vec<String> {
        let path = path.trim_end_matches(".rs").trim_end_matches("/mod");
        path.split('/').map(str::to_owned).collect()
    };
    let (left, right) = (parts(left), parts(right));
    left.iter().zip(&right).take_while(|(a, b)| a == b).count()
}

/// Which files of a type call which others. A method that several files define, for several traits, counts in each.
fn graph(blocks: &[&Block]) -> Graph {
    let mut places: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for block in blocks {
        for method in &block.methods {
            places.entry(&method.name).or_default().insert(&block.path);
        }
    }
    let mut graph = Graph::new();
    for block in blocks {
        let calls = graph.entry(block.path.clone()).or_default();
        for method in &block.methods {
            for name in &method.calls {
                let Some(places) = places.get(&**name) else {
                    continue;
                };
                if places.contains(&*block.path) {
                    continue;
                }
                for place in places {
                    let call = format!("{} calls {name}", method.name);
                    calls.entry((*place).to_owned()).or_insert(call);
                }
            }
        }
    }
    graph
}

/// Everything that a file calls, directly or through others.
fn reach<'a>(graph: &'a Graph, start: &str) -> BTreeSet<&'a str> {
    let mut seen = BTreeSet::new();
    let mut open = vec![start.to_owned()];
    while let Some(path) = open.pop() {
        let called = graph[&path].keys();
        let fresh = called.filter(|called| seen.insert(called.as_str()));
        open.extend(fresh.cloned());
    }
    seen
}

/// The groups of files in which each calls each other, directly or through others.
fn components(graph: &Graph) -> BTreeSet<BTreeSet<String>> {
    let reached: BTreeMap<&str, BTreeSet<&str>> = graph
        .keys()
        .map(|path| (path.as_str(), reach(graph, path)))
        .collect();
    let component = |path: &str| {
        let both_ways = reached[path]
            .iter()
            .filter(|other| reached[**other].contains(path));
        both_ways
            .map(|other| (*other).to_owned())
            .collect::<BTreeSet<String>>()
    };
    let all = graph.keys().map(|path| component(path));
    all.filter(|paths| paths.len() > 1).collect()
}

/// A call between each two files of a circle.
fn calls_within(circle: &Circle, graph: &Graph) -> String {
    let mut calls = String::new();
    for from in &circle.paths {
        for (to, call) in graph[from]
            .iter()
            .filter(|(to, _)| circle.paths.contains(*to))
        {
            calls += &format!("\n    {from}: {call} of {to}");
        }
    }
    calls
}

/// What a list of circles says that is not so, and which circles it lacks.
fn findings(listed: &str, circles: &[(Circle, Graph)]) -> Vec<String> {
    let mut findings = Vec::new();
    let mut known = Vec::new();
    for (index, line) in listed.lines().enumerate() {
        let circle = Circle::parse(line);
        let circle = circle.unwrap_or_else(|| panic!("{CIRCLES}:{}: no circle", index + 1));
        if !circles.iter().any(|(found, _)| found.is_part_of(&circle)) {
            findings.push(format!(
                "{CIRCLES}:{}: it is gone: take it off the list",
                index + 1
            ));
        }
        known.push(circle);
    }
    for (circle, graph) in circles.iter().filter(|(found, _)| !known.contains(found)) {
        let line = circle.line();
        if known.iter().any(|known| circle.is_part_of(known)) {
            findings.push(format!(
                "{CIRCLES}: a circle is smaller; its line is now\n{line}"
            ));
        } else {
            findings.push(format!("new circle: {line}{}", calls_within(circle, graph)));
        }
    }
    findings
}

#[test]
fn files_of_a_type_do_not_call_each_other_in_circles() {
    let shipped = shipped();
    let files = Files::read(shipped.iter().map(|(source, _)| source));
    assert!(files.blocks.len() > 100, "the types are read");
    let listed = fs::read_to_string(root().join(CIRCLES)).expect("the list of circles is there");
    judge("circles of calls", &findings(&listed, &files.circles()));
}

#[test]
fn a_planted_circle_of_calls_is_found() {
    let sources = [
        (
            "src/a/mod.rs",
            "pub struct Type<T> { field: T } impl<T: Fn() -> u8> Type<T> {
            fn start(&self) { run(|| [self.one(), 1]); } }",
        ),
        (
            "src/a/one.rs",
            "impl<T: Fn() -> u8> Type<T> { fn one(&self) -> u8 { self.two::<u8>() } }",
        ),
        (
            "src/a/two.rs",
            "impl<T> Trait<u8> for super::Type<T> where T: Copy { fn two(&self) -> u8 { Self::three(self) } }",
        ),
        (
            "src/a/three.rs",
            "impl<T> Type<T> { fn three(&self) { Type::one(self) }
            #[cfg(test)] fn four(&self) { self.start() } }",
        ),
        // No call of a method of the type: a field's, another type's, and one without `self`.
        (
            "src/a/five.rs",
            "impl<T> Type<T> { fn five(&self, other: &Self) { self.field.five(); other.start(); self.start() } }",
        ),
        (
            "src/b.rs",
            "struct Type; impl Type { fn one(&self) {} fn start(&self) { self.five() } }",
        ),
    ];
    let sources = sources.map(|(path, text)| Source {
        path: path.to_owned(),
        text: text.to_owned(),
    });
    let circles = Files::read(&sources).circles();
    let lines: Vec<String> = circles.iter().map(|(circle, _)| circle.line()).collect();
    let line = "Type in src/a: one.rs three.rs two.rs";
    assert_eq!(lines, [line]);
    assert_eq!(Circle::parse(line).as_ref(), Some(&circles[0].0));
    assert_eq!(findings(line, &circles), [""; 0]);
    let says = |listed: &str, what: &str| {
        let found = findings(listed, &circles);
        assert!(found.len() == 1 && found[0].contains(what), "{found:?}");
    };
    says("", "src/a/three.rs: three calls one of src/a/one.rs");
    says(&format!("{line} zero.rs"), "a circle is smaller");
    says(
        &format!("{line}\nType in src/c: d.rs e.rs"),
        "circles.txt:2: it is gone",
    );
}
