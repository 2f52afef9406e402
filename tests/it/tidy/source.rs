//! Reading Rust as far as the rules need it: code apart from comments and literals.

/// What a stretch of a Rust file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sort {
    Code,
    Comment,
    Literal,
}

/// The comment or literal that begins at a place in a source, and its length.
fn begins(source: &str) -> Option<(Sort, usize)> {
    if source.starts_with("//") {
        return Some((Sort::Comment, source.find('\n').unwrap_or(source.len())));
    }
    if source.starts_with("/*") {
        let (mut depth, mut at) = (0, 0);
        while at < source.len() {
            match source.as_bytes().get(at..at + 2) {
                Some(b"/*") => (depth, at) = (depth + 1, at + 2),
                Some(b"*/") => (depth, at) = (depth - 1, at + 2),
                _ => at += 1,
            }
            if depth == 0 {
                break;
            }
        }
        return Some((Sort::Comment, at));
    }
    if let Some(raw) = source.strip_prefix('r') {
        let hashes = raw.len() - raw.trim_start_matches('#').len();
        let text = raw[hashes..].strip_prefix('"')?;
        let end = format!("\"{}", "#".repeat(hashes));
        let length = text.find(&end).map_or(text.len(), |at| at + end.len());
        return Some((Sort::Literal, source.len() - text.len() + length));
    }
    if source.starts_with('"') {
        return Some((Sort::Literal, quoted(source, '"')));
    }
    let mut chars = source.strip_prefix('\'')?.chars();
    let first = chars.next()?;
    // Otherwise it is a lifetime.
    (first == '\\' || chars.next() == Some('\'')).then(|| (Sort::Literal, quoted(source, '\'')))
}

/// The length of a literal that ends with an unescaped quote.
fn quoted(source: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in source.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return at + 1,
            _ => {}
        }
    }
    source.len()
}

/// The stretches of a source, in order.
pub(super) fn stretches(source: &str) -> Vec<(Sort, &str)> {
    let (mut found, mut from, mut at) = (Vec::new(), 0, 0);
    while at < source.len() {
        let inside = source[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
        let raw = source[at..].starts_with('r');
        match begins(&source[at..]).filter(|_| !(raw && inside)) {
            Some((sort, length)) => {
                found.push((Sort::Code, &source[from..at]));
                found.push((sort, &source[at..at + length]));
                at += length;
                from = at;
            }
            None => at += source[at..].chars().next().map_or(1, char::len_utf8),
        }
    }
    found.push((Sort::Code, &source[from..]));
    found
}

/// A source with everything but its code blanked out, line by line the same.
pub(super) fn code(source: &str) -> String {
    let blank = |text: &str| text.replace(|c: char| c != '\n', " ");
    let code = |(sort, text): (Sort, &str)| match sort {
        Sort::Code => text.to_owned(),
        Sort::Comment | Sort::Literal => blank(text),
    };
    stretches(source).into_iter().map(code).collect()
}

pub(super) fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Where a word stands in a text, not as a part of a longer one.
pub(super) fn words<'t>(text: &'t str, word: &'t str) -> impl Iterator<Item = usize> + 't {
    text.match_indices(word).map(|(at, _)| at).filter(move |at| {
        !text[..*at].ends_with(is_word) && !text[at + word.len()..].starts_with(is_word)
    })
}

pub(super) fn line_of(text: &str, at: usize) -> usize {
    text[..at].matches('\n').count() + 1
}

/// The items at the top of what is between braces: `a::{b, c}, d` has `a` and `d`.
fn heads(group: &str) -> Vec<&str> {
    let (mut depth, mut from, mut found) = (0, 0, Vec::new());
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => {
                found.push(&group[from..at]);
                break;
            }
            '}' => depth -= 1,
            ',' if depth == 0 => {
                found.push(&group[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    let head = |item: &'_ str| item.trim().find(|c| !is_word(c)).unwrap_or(item.trim().len());
    found.into_iter().map(|item| &item.trim()[..head(item)]).collect()
}

/// Where a source uses a crate, or a module under a path's first segment.
pub(super) fn uses(code: &str, name: &str) -> Vec<usize> {
    let Some((head, module)) = name.split_once("::") else {
        let outside = |at: &usize| {
            let after = code[at + name.len()..].trim_start();
            let before = code[..*at].trim_end();
            !before.ends_with("::")
                && (after.starts_with("::") || before.ends_with("use") && !after.starts_with('('))
        };
        return words(code, name).filter(outside).collect();
    };
    let group = format!("{head}::{{");
    let direct = words(code, name);
    let grouped = code.match_indices(&group).map(|(at, _)| at);
    let grouped = grouped.filter(|at| heads(&code[at + group.len()..]).contains(&module));
    direct.chain(grouped).collect()
}

/// The lengths of all functions, by name.
pub(super) fn functions(source: &str) -> Vec<(String, usize)> {
    let code = code(source);
    let mut found = Vec::new();
    for at in words(&code, "fn") {
        let rest = &code[at..];
        let name: String = rest[2..].trim_start().chars().take_while(|c| is_word(*c)).collect();
        let Some(open) = rest.find(['{', ';']).filter(|open| rest[*open..].starts_with('{')) else {
            continue;
        };
        let mut depth = 0;
        let end = rest[open..].find(|c| {
            depth += match c {
                '{' => 1,
                '}' => -1,
                _ => 0,
            };
            depth == 0
        });
        let length = rest[..open + end.unwrap_or(0)].matches('\n').count() + 1;
        if !name.is_empty() {
            found.push((name, length));
        }
    }
    found
}

#[test]
fn rust_is_read_as_it_is_written() {
    let source = "let a = \"// no { comment\"; // a \"comment\"\nlet b = r#\"raw \" text\"#; 'x: {}\
                  let c = ('\"', '\\'', b\"x\"); /* a /* nested */ one */ fn";
    let seen = code(source);
    assert_eq!(seen.len(), source.len());
    let kept: Vec<_> = seen.split_whitespace().collect();
    let expected = "let a = ; let b = ; 'x: {}let c = ( , , b ); fn";
    assert_eq!(kept, expected.split_whitespace().collect::<Vec<_>>());
    let lengths = functions("fn one() {\n  {}\n}\ntrait T { fn none(&self); }\nfn two() {}\n");
    assert_eq!(lengths, [("one".to_owned(), 3), ("two".to_owned(), 1)]);
}
