//! Secrets that are planted, and what is said where they must not be.

use std::{
    error::Error as StdError,
    fmt::Debug,
    sync::{Arc, Mutex},
};

use tracing::{
    Subscriber,
    field::{Field, Visit},
    span,
};
use tracing_subscriber::{Layer, layer::Context};

/// What must not be shown, by where it was put.
#[derive(Clone, Default)]
pub(crate) struct Secrets(pub(crate) Vec<(&'static str, String)>);

impl Secrets {
    /// One of its own; letters and digits, so that no encoding hides it.
    pub(crate) fn plant(&mut self, place: &'static str) -> String {
        let secret = format!("s3cret{:016x}", rand::random::<u64>());
        self.0.push((place, secret.clone()));
        secret
    }

    /// Fails if one of them is in the text.
    #[track_caller]
    pub(crate) fn assert_hidden(&self, scene: &str, text: &str) {
        for (place, secret) in &self.0 {
            let shown = text.lines().find(|line| line.contains(secret.as_str()));
            assert_eq!(shown, None, "{scene}: the secret of {place} is shown");
        }
    }
}

/// Both `Debug` forms.
pub(crate) fn forms(value: &impl Debug) -> String {
    format!("{value:?}\n{value:#?}\n")
}

/// Everything that an error says, down to its root.
pub(crate) fn story(error: &(dyn StdError + 'static)) -> String {
    let mut story = String::new();
    let mut next = Some(error);
    while let Some(error) = next {
        story.push_str(&format!("{error}\n{error:#}\n{error:?}\n{error:#?}\n"));
        next = error.source();
    }
    story
}

/// All that `tracing` is told at target `abide`, at any level.
#[derive(Clone, Default)]
pub(crate) struct Traced(pub(crate) Arc<Mutex<String>>);

impl Visit for Traced {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.lock().unwrap().push_str(&format!("{field}={value:?}\n"));
    }
}

impl<S: Subscriber> Layer<S> for Traced {
    fn on_new_span(&self, attributes: &span::Attributes<'_>, _: &span::Id, _: Context<'_, S>) {
        if attributes.metadata().target().starts_with("abide") {
            attributes.record(&mut self.clone());
        }
    }

    fn on_record(&self, _: &span::Id, values: &span::Record<'_>, _: Context<'_, S>) {
        values.record(&mut self.clone());
    }

    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        if event.metadata().target().starts_with("abide") {
            event.record(&mut self.clone());
        }
    }
}
