//! The weights that layers have, and what plans call them.

/// Defines [`LayerWeight`] and the name of each weight.
macro_rules! layer_weights {
    ($($weight:ident = $name:literal,)+) => {
        /// A weight of a layer.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum LayerWeight {
            $($weight,)+
        }

        impl LayerWeight {
            /// All of them.
            #[cfg(test)]
            pub(super) const ALL: &[Self] = &[$(Self::$weight,)+];

            fn name(self) -> &'static str {
                match self {
                    $(Self::$weight => $name,)+
                }
            }
        }
    };
}

impl LayerWeight {
    /// Whether it is a matrix of a product that LoRA adapters may change.
    pub(super) fn is_adaptable(self) -> bool {
        use LayerWeight::*;
        matches!(
            self,
            Qkv | Output
                | Query
                | QueryLatent
                | QueryUp
                | Latent
                | ConvolutionInput
                | ConvolutionOutput
                | StateInput
                | StateOutput
                | GateUp
                | Down
                | Router
                | SharedGateUp
                | SharedDown
        )
    }

    /// The name of this weight of a layer in a plan.
    pub(super) fn of_layer(self, layer: usize) -> String {
        format!("layers.{layer}.{}", self.name())
    }
}

layer_weights! {
    // Norms of the stream: before and after attention, or what a layer has instead; before and after its MLP.
    AttentionNorm = "attention_norm",
    AttentionNormBias = "attention_norm_bias",
    AttentionPostNorm = "attention_post_norm",
    AttentionPostNormBias = "attention_post_norm_bias",
    MlpNorm = "mlp_norm",
    MlpNormBias = "mlp_norm_bias",
    MlpPostNorm = "mlp_post_norm",
    MlpPostNormBias = "mlp_post_norm_bias",

    // Attention.
    Qkv = "qkv",
    QkvBias = "qkv_bias",
    QNorm = "q_norm",
    KNorm = "k_norm",
    Sinks = "sinks",
    Output = "output",
    OutputBias = "output_bias",

    // Latent attention.
    Query = "query",
    QueryLatent = "query_latent",
    QueryLatentNorm = "query_latent_norm",
    QueryUp = "query_up",
    Latent = "latent",
    LatentNorm = "latent_norm",
    LatentKeys = "latent_keys",
    LatentValues = "latent_values",

    // Short convolutions.
    ConvolutionInput = "convolution_input",
    ConvolutionInputBias = "convolution_input_bias",
    Convolution = "convolution",
    ConvolutionBias = "convolution_bias",
    ConvolutionOutput = "convolution_output",
    ConvolutionOutputBias = "convolution_output_bias",

    // Recurrent states.
    StateInput = "state_input",
    StateInputBias = "state_input_bias",
    StateConvolution = "state_convolution",
    StateConvolutionBias = "state_convolution_bias",
    StateDecay = "state_decay",
    StateDtBias = "state_dt_bias",
    StateSkip = "state_skip",
    StateNorm = "state_norm",
    StateOutput = "state_output",
    StateOutputBias = "state_output_bias",

    // The MLP.
    GateUp = "gate_up",
    GateUpBias = "gate_up_bias",
    Down = "down",
    DownBias = "down_bias",
    Xielu = "xielu",

    // Experts, and the MLP that every token passes besides.
    Router = "router",
    RouterBias = "router_bias",
    RouterChoiceBias = "router_choice_bias",
    RouterNorm = "router_norm",
    RouterScales = "router_scales",
    DensePostNorm = "dense_post_norm",
    ExpertNorm = "expert_norm",
    ExpertPostNorm = "expert_post_norm",
    ExpertInput = "expert_input",
    ExpertOutput = "expert_output",
    ExpertGateUp = "expert_gate_up",
    ExpertGateUpBias = "expert_gate_up_bias",
    ExpertDown = "expert_down",
    ExpertDownBias = "expert_down_bias",
    SharedGate = "shared_gate",
    SharedGateUp = "shared_gate_up",
    SharedDown = "shared_down",

    // What ends a layer: its own embedding, and a number.
    LayerGate = "layer_gate",
    LayerOutput = "layer_output",
    LayerOutputNorm = "layer_output_norm",
    Scalar = "scalar",
}
