//! Heads for classes over an encoder: what rerankers and classifiers have.

use super::config_reader::ConfigReader;
use super::error::LoadError;
use super::pooled::{PooledLayer, PooledNames, Squash, through};
use super::source::TensorSource;
use super::tensor_names::Nesting;
use serde_json::Value;

/// Maximum number of labels.
const LABELS_MAX: u32 = 1 << 16;

/// What a head for classes is, as a `config.json` says.
#[derive(Clone, Debug, PartialEq)]
pub struct ClassesSpec {
    /// The class of transformers.
    pub architecture: &'static str,
    /// The names of the labels, in order.
    pub labels: Vec<String>,
    /// The head reads the mean of all rows, not the first one.
    pub of_mean: bool,
    /// What makes scores of logits.
    pub score: Squash,
    form: HeadForm,
}

/// The layers of a head.
#[derive(Clone, Copy, Debug, PartialEq)]
enum HeadForm {
    /// `classifier · tanh(pooler.dense · x)`, of which the pooler is among the encoder's tensors.
    Pooler,
    /// `classifier.out_proj · tanh(classifier.dense · x)`.
    OwnLayer,
    /// `classifier · norm(squash(head.dense · x))`.
    Normed {
        squash: Squash,
        bias: bool,
        epsilon: f32,
    },
}

/// The classes of transformers: a class with a head, the one without it, and how the head is made.
const CLASSES: [(&str, &str, Shape); 7] = [
    ("BertForSequenceClassification", "BertModel", Shape::Pooler),
    ("NewForSequenceClassification", "NewModel", Shape::Pooler),
    ("GteForSequenceClassification", "GteModel", Shape::Pooler),
    (
        "RobertaForSequenceClassification",
        "RobertaModel",
        Shape::OwnLayer,
    ),
    (
        "XLMRobertaForSequenceClassification",
        "XLMRobertaModel",
        Shape::OwnLayer,
    ),
    (
        "CamembertForSequenceClassification",
        "CamembertModel",
        Shape::OwnLayer,
    ),
    (
        "ModernBertForSequenceClassification",
        "ModernBertModel",
        Shape::Normed,
    ),
];

/// A [`HeadForm`] before its config is read.
#[derive(Clone, Copy, PartialEq)]
enum Shape {
    Pooler,
    OwnLayer,
    Normed,
}

/// The architecture below the head of a class of transformers; `None` if it has none.
pub(super) fn base(class: &str) -> Option<&'static str> {
    let found = CLASSES.iter().find(|(own, ..)| *own == class);
    found.map(|(_, base, _)| *base)
}

/// Reads what a config says of a head, if its class has one.
pub(super) fn classes(config: &ConfigReader<'_>) -> Result<Option<ClassesSpec>, LoadError> {
    let class = config.list("architectures")?.and_then(<[_]>::first);
    let class = class.and_then(Value::as_str);
    let Some((architecture, _, shape)) = CLASSES.iter().find(|(own, ..)| Some(*own) == class)
    else {
        return Ok(None);
    };
    let labels = labels(config)?;
    let (form, of_mean) = match shape {
        Shape::Pooler => (HeadForm::Pooler, false),
        Shape::OwnLayer => (HeadForm::OwnLayer, false),
        Shape::Normed => normed(config)?,
    };
    let score = score(config, labels.len())?;
    Ok(Some(ClassesSpec {
        architecture,
        labels,
        of_mean,
        score,
        form,
    }))
}

/// ModernBERT's head, and whether it reads the mean.
fn normed(config: &ConfigReader<'_>) -> Result<(HeadForm, bool), LoadError> {
    let of_mean = match config.text("classifier_pooling")? {
        None | Some("cls") => false,
        Some("mean") => true,
        Some(other) => {
            let message = format!("is {other:?}, not cls or mean");
            return Err(config.invalid("classifier_pooling", message));
        }
    };
    let name = config.text("classifier_activation")?.unwrap_or("gelu");
    let squash = Squash::of_config(name).ok_or_else(|| {
        config.invalid(
            "classifier_activation",
            format!("is {name:?}, which is not supported"),
        )
    })?;
    let form = HeadForm::Normed {
        squash,
        bias: config.boolean("classifier_bias")?.unwrap_or(false),
        epsilon: config.number("norm_eps", 1e-12..=0.1)?.unwrap_or(1e-5) as f32,
    };
    Ok((form, of_mean))
}

/// The names of the labels: those of `id2label`, which has one for each number from 0 on.
fn labels(config: &ConfigReader<'_>) -> Result<Vec<String>, LoadError> {
    let numbered = |count: u32| (0..count).map(|index| format!("LABEL_{index}")).collect();
    let Some(named) = config.object("id2label")? else {
        let count = config.integer("num_labels", 1..=LABELS_MAX)?;
        return Ok(numbered(count.unwrap_or(2)));
    };
    let mut labels = vec![None; named.entries().count()];
    for (id, label) in named.entries() {
        let place = id.parse().ok().and_then(|id: usize| labels.get_mut(id));
        match (place, label) {
            (Some(place), Value::String(label)) => *place = Some(label.clone()),
            (Some(place), Value::Number(label)) => *place = Some(label.to_string()),
            _ => return Err(named.invalid(id, "is not the name of a label, numbered from 0")),
        }
    }
    let labels: Option<Vec<String>> = labels.into_iter().collect();
    labels
        .filter(|labels| (1..=LABELS_MAX as usize).contains(&labels.len()))
        .ok_or_else(|| config.invalid("id2label", "has no label for some number from 0 on"))
}

/// What makes scores of logits: what sentence-transformers wrote, else as the kind of problem wants it, else a sigmoid
/// for one label and a softmax for several.
fn score(config: &ConfigReader<'_>, labels: usize) -> Result<Squash, LoadError> {
    let own = config.object("sentence_transformers")?;
    let newer = match &own {
        Some(own) => own.text("activation_fn")?,
        None => None,
    };
    let older = "sbert_ce_default_activation_function";
    let named = match newer {
        Some(class) => Some(("sentence_transformers.activation_fn", class)),
        None => config.text(older)?.map(|class| (older, class)),
    };
    if let Some((field, class)) = named {
        let message = format!("is {class:?}, which is not supported");
        return Squash::of_torch(class).ok_or_else(|| config.invalid(field, message));
    }
    let usual = if labels == 1 {
        Squash::Sigmoid
    } else {
        Squash::Softmax
    };
    match config.text("problem_type")? {
        None | Some("single_label_classification") => Ok(usual),
        Some("regression") => Ok(Squash::Identity),
        Some("multi_label_classification") => Ok(Squash::Sigmoid),
        Some(other) => Err(config.invalid(
            "problem_type",
            format!(
                "is {other:?}, not regression, single_label_classification or \
                 multi_label_classification"
            ),
        )),
    }
}

/// A head for classes with its weights.
#[derive(Clone, Debug, PartialEq)]
pub struct ClassHead {
    /// What it is.
    pub spec: ClassesSpec,
    layers: Vec<PooledLayer>,
}

impl ClassHead {
    /// Reads the weights of a head over rows of so many elements. `embedding` is the name of the table of tokens, which
    /// tells how tensors are nested.
    ///
    /// # Errors
    /// Those of its tensors.
    pub(super) async fn read(
        spec: &ClassesSpec,
        hidden: u32,
        embedding: &str,
        source: &dyn TensorSource,
    ) -> Result<Self, LoadError> {
        let exists = |tensor: &str| source.tensors().contains_key(tensor);
        let nesting = Nesting::find(embedding, exists);
        let mut layers = Vec::new();
        for names in spec.names(hidden, nesting) {
            layers.push(PooledLayer::read(&names, source).await?);
        }
        Ok(Self {
            spec: spec.clone(),
            layers,
        })
    }

    /// The logits of a pooled row, one for each label.
    pub fn logits(&self, row: &[f32]) -> Vec<f64> {
        through(&self.layers, row)
    }
}

impl ClassesSpec {
    /// The tensors of the layers over rows of so many elements.
    fn names(&self, hidden: u32, nesting: Nesting) -> [PooledNames; 2] {
        let layer = |name: &str, bias: bool, outputs| PooledNames {
            weight: format!("{name}.weight"),
            bias: bias.then(|| format!("{name}.bias")),
            norm: None,
            squash: Squash::Identity,
            inputs: hidden,
            outputs,
        };
        let labels = u32::try_from(self.labels.len()).expect("a head has few labels");
        match self.form {
            HeadForm::Pooler => [
                PooledNames {
                    squash: Squash::Tanh,
                    ..layer(&nesting.of("pooler.dense"), true, hidden)
                },
                layer("classifier", true, labels),
            ],
            HeadForm::OwnLayer => [
                PooledNames {
                    squash: Squash::Tanh,
                    ..layer("classifier.dense", true, hidden)
                },
                layer("classifier.out_proj", true, labels),
            ],
            HeadForm::Normed {
                squash,
                bias,
                epsilon,
            } => [
                PooledNames {
                    squash,
                    norm: Some(("head.norm.weight".into(), epsilon)),
                    ..layer("head.dense", bias, hidden)
                },
                layer("classifier", true, labels),
            ],
        }
    }
}
