//! Finds the test functions in Rust source text.
//!
//! A full parser is not needed: the token stream shows functions and the attributes directly above them. Comments and
//! literals are skipped, so a test that is commented out, or quoted in a string, does not count. Tests inside `proptest! {
//! .. }` are found like any other, because they have `#[test]`, too.

/// A function in a source file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Function {
    /// Its name, without the modules around it.
    pub(crate) name: String,
    /// Whether `#[test]`, `#[tokio::test]` or another `…::test` stands above it.
    pub(crate) is_test: bool,
    /// Whether `#[ignore]` stands above it. `#[cfg_attr(.., ignore)]` does not count: it depends on the build.
    pub(crate) is_ignored: bool,
}

/// Every named function of `source`, in order.
pub(crate) fn functions(source: &str) -> Vec<Function> {
    let mut found = Vec::new();
    let mut tokens = Tokens { rest: source };
    // Attributes since the last item; they may belong to the next function.
    let mut next = Function::default();
    while let Some(token) = tokens.next() {
        match token {
            Token::Symbol('#') => {
                if let Some(path) = tokens.attribute() {
                    next.is_test |= path == "test" || path.ends_with("::test");
                    next.is_ignored |= path == "ignore";
                }
            }
            Token::Word("fn") => {
                let mut function = std::mem::take(&mut next);
                // `fn(` is a type and `fn $name` a macro's parameter: neither is a function with a name.
                if let Some(name) = tokens.take_word() {
                    function.name = name.to_owned();
                    found.push(function);
                }
            }
            // Tokens that may come between the attributes and `fn`.
            Token::Word("pub" | "crate" | "super" | "in" | "async" | "const" | "unsafe" | "extern")
            | Token::Symbol('(' | ')') => {}
            Token::Word(_) | Token::Symbol(_) | Token::Literal => next = Function::default(),
        }
    }
    found
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token<'a> {
    /// An identifier, keyword, number or lifetime's name.
    Word(&'a str),
    /// A string or character.
    Literal,
    /// Any other character that is not blank.
    Symbol(char),
}

/// The tokens of the rest of a source text; comments are left out.
struct Tokens<'a> {
    rest: &'a str,
}

impl<'a> Tokens<'a> {
    /// After a `#`: reads `[path(..)]` and gives the path. `None`, and nothing read, where no `[` follows
    /// (an inner attribute `#![..]` says nothing about the function below it).
    fn attribute(&mut self) -> Option<String> {
        let mut ahead = Tokens { rest: self.rest };
        if ahead.next() != Some(Token::Symbol('[')) {
            return None;
        }
        let mut path = String::new();
        let mut path_ended = false;
        let mut depth = 1;
        while depth > 0 {
            match ahead.next()? {
                Token::Symbol('[') => depth += 1,
                Token::Symbol(']') => depth -= 1,
                Token::Word(word) if !path_ended => path.push_str(word),
                Token::Symbol(':') if !path_ended => path.push(':'),
                _ => path_ended = true,
            }
        }
        self.rest = ahead.rest;
        Some(path)
    }

    /// The next token if it is a word; otherwise nothing is read.
    fn take_word(&mut self) -> Option<&'a str> {
        let mut ahead = Tokens { rest: self.rest };
        match ahead.next() {
            Some(Token::Word(word)) => {
                self.rest = ahead.rest;
                Some(word)
            }
            _ => None,
        }
    }

    /// Passes over blanks and comments.
    fn skip_blank(&mut self) {
        loop {
            self.rest = self.rest.trim_start();
            if self.rest.starts_with("//") {
                self.rest = self.rest.find('\n').map_or("", |end| &self.rest[end..]);
            } else if self.rest.starts_with("/*") {
                self.skip_block_comment();
            } else {
                return;
            }
        }
    }

    /// Passes over `/* .. */`, which may be nested.
    fn skip_block_comment(&mut self) {
        let mut depth = 0;
        while !self.rest.is_empty() {
            if let Some(rest) = self.rest.strip_prefix("/*") {
                depth += 1;
                self.rest = rest;
            } else if let Some(rest) = self.rest.strip_prefix("*/") {
                depth -= 1;
                self.rest = rest;
                if depth == 0 {
                    return;
                }
            } else {
                self.skip_char();
            }
        }
    }

    /// After the opening `quote`: passes over the literal and its closing quote.
    fn skip_quoted(&mut self, quote: char) {
        while let Some(c) = self.skip_char() {
            if c == '\\' {
                self.skip_char();
            } else if c == quote {
                return;
            }
        }
    }

    /// Passes over `#".."#` after an `r`, with any number of `#`, and returns whether it was there.
    fn skip_raw_string(&mut self) -> bool {
        let body = self.rest.trim_start_matches('#');
        let hashes = &self.rest[..self.rest.len() - body.len()];
        let Some(body) = body.strip_prefix('"') else {
            return false;
        };
        let close = format!("\"{hashes}");
        self.rest = body.find(&close).map_or("", |at| &body[at + close.len()..]);
        true
    }

    fn skip_char(&mut self) -> Option<char> {
        let mut chars = self.rest.chars();
        let c = chars.next();
        self.rest = chars.as_str();
        c
    }
}

impl<'a> Iterator for Tokens<'a> {
    type Item = Token<'a>;

    fn next(&mut self) -> Option<Token<'a>> {
        self.skip_blank();
        let end = self.rest.find(|c: char| !is_word(c)).unwrap_or(self.rest.len());
        if end > 0 {
            let (word, rest) = self.rest.split_at(end);
            self.rest = rest;
            if matches!(word, "r" | "br" | "cr") {
                if self.skip_raw_string() {
                    return Some(Token::Literal);
                }
                // A raw identifier, `r#name`, is the word behind its mark.
                if let Some(rest) = self.rest.strip_prefix('#') {
                    self.rest = rest;
                    return self.next();
                }
            }
            return Some(Token::Word(word));
        }
        match self.skip_char()? {
            '"' => {
                self.skip_quoted('"');
                Some(Token::Literal)
            }
            '\'' => {
                // 'x' and '\n' are characters; anything else behind a ' is a lifetime.
                let mut ahead = self.rest.chars();
                let (first, second) = (ahead.next(), ahead.next());
                if first == Some('\\') || second == Some('\'') {
                    self.skip_quoted('\'');
                    return Some(Token::Literal);
                }
                Some(Token::Symbol('\''))
            }
            symbol => Some(Token::Symbol(symbol)),
        }
    }
}

fn is_word(c: char) -> bool {
    c == '_' || c.is_alphanumeric()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(source: &str) -> Function {
        let mut all = functions(source);
        assert_eq!(all.len(), 1, "{all:?}");
        all.remove(0)
    }

    #[test]
    fn attributes_in_any_order_and_with_arguments_belong_to_the_function_below() {
        for source in [
            "#[test]\nfn a() {}",
            "#[tokio::test(start_paused = true, flavor = \"current_thread\")]\nasync fn a() {}",
            "#[test]\n/// Says why.\n#[should_panic(expected = \"[\")]\npub(crate) fn a() {}",
            "proptest! {\n    #![proptest_config(config())]\n    #[test]\n    fn a(x in 0..10u8) { use_it(x) }\n}",
        ] {
            let function = one(source);
            assert_eq!(
                (function.name.as_str(), function.is_test, function.is_ignored),
                ("a", true, false),
                "{source}"
            );
        }
    }

    #[test]
    fn an_ignored_test_is_seen_on_either_side_of_its_test_attribute() {
        assert!(one("#[test]\n#[ignore]\nfn a() {}").is_ignored);
        assert!(one("#[ignore = \"needs a broker\"]\n#[test]\nfn a() {}").is_ignored);
        assert!(!one("#[test]\n#[cfg_attr(miri, ignore)]\nfn a() {}").is_ignored);
    }

    #[test]
    fn an_attribute_does_not_reach_over_another_item() {
        assert!(!one("#[test]\nstruct S;\nfn a() {}").is_test);
        assert!(!one("#[cfg(test)]\nfn a() {}").is_test);
        assert!(!one("#![test]\nfn a() {}").is_test);
    }

    #[test]
    fn comments_and_literals_hold_no_functions() {
        for source in [
            "// #[test]\n// fn a() {}",
            "/* #[test] /* nested */ fn a() {} */",
            "const S: &str = \"\\\" #[test] fn a() {}\";",
            "const S: &str = r#\"\" #[test] fn a() {}\"#;",
            "const S: &[u8] = br\"\\\"; // fn a() {}",
            "type F = fn(u8) -> u8;",
            "macro_rules! m { ($name:ident) => { #[test] fn $name() {} } }",
        ] {
            assert_eq!(functions(source), [], "{source}");
        }
    }

    #[test]
    fn quotes_of_characters_and_lifetimes_do_not_hide_what_follows() {
        let source =
            "const Q: char = '\"'; const E: char = '\\''; struct S<'a>(&'a str);\n#[test]\nfn a() {}";
        assert!(one(source).is_test);
        assert_eq!(one("fn r#loop() {}").name, "loop");
    }
}
