//! Training of an encoder on sentences: every step has its own batch and length, so hardly a size comes twice.
//!
//! Main types: [`Step`], [`Layer`]. Neighbours: `builder` makes the trace.

use std::ops::Range;

use rand::Rng;
use rand_chacha::ChaCha8Rng;

use super::builder::{BlockId, Builder};
use super::draw::log_uniform;
use crate::reader::Trace;

const LAYERS: usize = 8;
const HIDDEN: u64 = 1_024;
const HEADS: u64 = 16;
const VOCABULARY: u64 = 16_000;
/// Weights and optimizer state are fp32, …
const WEIGHT_BYTES: u64 = 4;
/// … activations bf16, …
const ACTIVATION_BYTES: u64 = 2;
/// … token numbers 64-bit.
const TOKEN_BYTES: u64 = 8;
/// Tokens that a batch may have, padding included: what the loader fills batches up to.
const TOKEN_BUDGET: u64 = 40_000;
/// Sentences of 16 to 511 tokens, as powers of two.
const LENGTH_EXPONENTS: Range<u32> = 4..9;
const MOST_SENTENCES: u64 = 128;
/// Weight matrices and biases of a layer: attention in and out, the two of the feed-forward part.
const LAYER_WEIGHTS: [u64; 4] =
    [3 * HIDDEN * HIDDEN, HIDDEN * HIDDEN, 4 * HIDDEN * HIDDEN, 4 * HIDDEN * HIDDEN];
const LAYER_BIASES: [u64; 4] = [3 * HIDDEN, HIDDEN, 4 * HIDDEN, HIDDEN];

/// `steps` steps: forward, backward with gradients, AdamW.
pub(super) fn nlp_dynamic(rng: &mut ChaCha8Rng, seed: u64, steps: u64) -> Trace {
    let mut trace = Builder::new();
    // The weights, and AdamW's two moments of each.
    for _ in 0..3 {
        for _ in 0..LAYERS {
            for (weights, biases) in LAYER_WEIGHTS.into_iter().zip(LAYER_BIASES) {
                trace.allocate(weights * WEIGHT_BYTES);
                trace.allocate(biases * WEIGHT_BYTES);
            }
        }
        trace.allocate(VOCABULARY * HIDDEN * WEIGHT_BYTES);
    }
    for number in 0..steps {
        trace.mark(format!("step {number}"));
        Step::draw(rng).run(&mut trace);
    }
    trace.finish(
        "nlp-dynamic",
        "generated: training steps of an 8-layer encoder-like model, each with its own batch and sequence length",
        &[("seed", seed), ("steps", steps)],
    )
}

/// Sizes of one step, in bytes.
#[derive(Clone, Copy, Debug)]
struct Step {
    tokens: u64,
    /// One activation: tokens × hidden.
    activation: u64,
    /// Attention scores: sentences × heads × length × length.
    scores: u64,
}

/// What the forward pass of a layer keeps for the backward pass.
struct Layer {
    input: BlockId,
    qkv: BlockId,
    scores: BlockId,
    attended: BlockId,
    wide: BlockId,
    activated: BlockId,
}

impl Step {
    /// A length, log-uniform, and as many sentences as the budget allows, or fewer.
    fn draw(rng: &mut ChaCha8Rng) -> Self {
        let length = log_uniform(rng, LENGTH_EXPONENTS);
        let most = (TOKEN_BUDGET / length).clamp(1, MOST_SENTENCES);
        let sentences = rng.random_range(most.div_ceil(2)..=most);
        let tokens = sentences * length;
        Self {
            tokens,
            activation: tokens * HIDDEN * ACTIVATION_BYTES,
            scores: sentences * HEADS * length * length * ACTIVATION_BYTES,
        }
    }

    fn run(self, trace: &mut Builder) {
        let tokens = trace.allocate(self.tokens * TOKEN_BYTES);
        let mut hidden = trace.allocate(self.activation);
        let mut layers = Vec::with_capacity(LAYERS);
        for _ in 0..LAYERS {
            let (layer, output) = self.forward(trace, hidden);
            layers.push(layer);
            hidden = output;
        }
        let logits = trace.allocate(self.tokens * VOCABULARY * ACTIVATION_BYTES);
        let logits_gradient = trace.allocate(self.tokens * VOCABULARY * ACTIVATION_BYTES);
        trace.free(logits);
        let mut gradient = trace.allocate(self.activation);
        let mut gradients = vec![trace.allocate(VOCABULARY * HIDDEN * WEIGHT_BYTES)];
        trace.free(logits_gradient);
        trace.free(hidden);
        while let Some(layer) = layers.pop() {
            gradient = self.backward(trace, layer, gradient, &mut gradients);
        }
        trace.free(gradient);
        trace.free(tokens);
        for gradient in gradients {
            // AdamW in place, with one temporary as large as the weight.
            let bytes = gradient.bytes();
            let temporary = trace.allocate(bytes);
            trace.free(temporary);
            trace.free(gradient);
        }
    }

    /// The layer's kept blocks, and its output.
    fn forward(self, trace: &mut Builder, input: BlockId) -> (Layer, BlockId) {
        let qkv = trace.allocate(3 * self.activation);
        let raw = trace.allocate(self.scores);
        let scores = trace.allocate(self.scores);
        trace.free(raw);
        let attended = trace.allocate(self.activation);
        let wide = trace.allocate(4 * self.activation);
        let activated = trace.allocate(4 * self.activation);
        let output = trace.allocate(self.activation);
        (Layer { input, qkv, scores, attended, wide, activated }, output)
    }

    /// Frees the layer's kept blocks as their gradients are done; the gradient of its input.
    fn backward(
        self,
        trace: &mut Builder,
        layer: Layer,
        gradient: BlockId,
        gradients: &mut Vec<BlockId>,
    ) -> BlockId {
        let [qkv_weights, out_weights, up_weights, down_weights] = LAYER_WEIGHTS;
        let activated_gradient = trace.allocate(4 * self.activation);
        gradients.push(trace.allocate(down_weights * WEIGHT_BYTES));
        trace.free(layer.activated);
        let wide_gradient = trace.allocate(4 * self.activation);
        trace.free(activated_gradient);
        trace.free(layer.wide);
        let attended_gradient = trace.allocate(self.activation);
        gradients.push(trace.allocate(up_weights * WEIGHT_BYTES));
        trace.free(wide_gradient);
        gradients.push(trace.allocate(out_weights * WEIGHT_BYTES));
        trace.free(layer.attended);
        let scores_gradient = trace.allocate(self.scores);
        let qkv_gradient = trace.allocate(3 * self.activation);
        trace.free(layer.scores);
        trace.free(scores_gradient);
        trace.free(attended_gradient);
        gradients.push(trace.allocate(qkv_weights * WEIGHT_BYTES));
        trace.free(layer.qkv);
        let input_gradient = trace.allocate(self.activation);
        trace.free(qkv_gradient);
        trace.free(gradient);
        trace.free(layer.input);
        input_gradient
    }
}
