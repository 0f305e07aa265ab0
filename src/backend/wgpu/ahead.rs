//! Compiles kernels behind other work where wgpu cannot: in a browser.
//!
//! wgpu creates pipelines synchronously: a tab could neither upload weights nor show progress meanwhile. So every
//! kernel is created asynchronously first, through the browser's own API and with an equal descriptor: while such a
//! pipeline lives, the browser answers wgpu's request for an equal one from its cache. Kernels that few requests need
//! are asked for last, and nobody waits for them; one at a time, because a browser compiles what it was asked for also
//! when nobody wants it any more. Failures are not reported here: wgpu's own request will fail too.
//!
//! In Chromium on SwiftShader, compiling takes as long as by wgpu's requests: both kinds keep all cores busy.

use super::device::Gpu;
use super::pipelines::{Access, Kernel, PARAMS_SLOT_BYTES, Wanted};
use super::preprocess;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use js_sys::{Array, Object, Promise, Reflect};
use std::cell::RefCell;
use std::rc::Rc;
use wasm_bindgen::JsCast as _;
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::{JsFuture, spawn_local};

/// `GPUShaderStage.COMPUTE`.
const COMPUTE: u32 = 4;

#[wasm_bindgen]
extern "C" {
    /// `GPUDevice`, with the methods that are needed here.
    type Device;

    #[wasm_bindgen(method, js_name = createShaderModule)]
    fn create_shader_module(this: &Device, descriptor: &JsValue) -> JsValue;

    #[wasm_bindgen(method, js_name = createBindGroupLayout)]
    fn create_bind_group_layout(this: &Device, descriptor: &JsValue) -> JsValue;

    #[wasm_bindgen(method, js_name = createPipelineLayout)]
    fn create_pipeline_layout(this: &Device, descriptor: &JsValue) -> JsValue;

    #[wasm_bindgen(method, js_name = createComputePipelineAsync)]
    fn create_compute_pipeline_async(this: &Device, descriptor: &JsValue) -> Promise;

    #[wasm_bindgen(method, js_name = pushErrorScope)]
    fn push_error_scope(this: &Device, filter: &str);

    #[wasm_bindgen(method, js_name = popErrorScope)]
    fn pop_error_scope(this: &Device) -> Promise;
}

/// Pipelines on their way. The browser keeps those that it has made while this lives.
#[derive(Default)]
pub(crate) struct Ahead {
    asked: FuturesUnordered<JsFuture>,
    made: Rc<RefCell<Vec<JsValue>>>,
}

impl Ahead {
    /// Asks for all of `wanted` and does not wait.
    pub(crate) fn ask(&mut self, gpu: &Gpu, wanted: &Wanted) {
        let Some(device) = gpu.device.as_webgpu() else {
            return;
        };
        let device: &Device = device.unchecked_ref();
        self.asked.extend(
            wanted
                .iter()
                .filter_map(|(kernel, access)| create(device, kernel, access)),
        );
    }

    /// Asks for one after the other while other work goes on, until this is dropped.
    pub(crate) fn ask_in_turn(&self, gpu: &Gpu, wanted: Wanted) {
        let Some(device) = gpu.device.as_webgpu() else {
            return;
        };
        let device: Device = device.clone().unchecked_into();
        let made = Rc::downgrade(&self.made);
        spawn_local(async move {
            for (kernel, access) in wanted {
                let Some(asked) = create(&device, &kernel, &access) else {
                    continue;
                };
                let pipeline = asked.await.ok();
                let Some(made) = made.upgrade() else { return };
                made.borrow_mut().extend(pipeline);
            }
        });
    }

    /// Waits for all. `progress` gets how many are done, and of how many.
    pub(crate) async fn wait(&mut self, progress: &mut dyn FnMut(u32, u32)) {
        let total = u32::try_from(self.asked.len()).expect("a plan has few kernels");
        for done in 0..total {
            progress(done, total);
            let pipeline = self.asked.next().await.and_then(Result::ok);
            self.made.borrow_mut().extend(pipeline);
        }
    }
}

/// Requests a pipeline; `None` if its text or its bindings are nothing for a browser.
fn create(device: &Device, kernel: &Kernel, access: &[Access]) -> Option<JsFuture> {
    let text = preprocess::expand(kernel.stem, &kernel.defines).ok()?;
    let entries = entries(access)?;
    device.push_error_scope("validation");
    let module = device.create_shader_module(&object(&[("code", &text.into())]));
    let group = device.create_bind_group_layout(&object(&[("entries", &entries)]));
    let layout =
        device.create_pipeline_layout(&object(&[("bindGroupLayouts", &Array::of1(&group))]));
    let stage = object(&[("module", &module), ("entryPoint", &"main".into())]);
    let pipeline =
        device.create_compute_pipeline_async(&object(&[("layout", &layout), ("compute", &stage)]));
    let scope = JsFuture::from(device.pop_error_scope());
    // What is wrong is told by wgpu's own request.
    spawn_local(async { drop(scope.await) });
    Some(pipeline.into())
}

/// The bindings that `Pipelines` gives a kernel.
fn entries(access: &[Access]) -> Option<JsValue> {
    let params = [
        ("type", &"uniform".into()),
        ("hasDynamicOffset", &true.into()),
        ("minBindingSize", &PARAMS_SLOT_BYTES.into()),
    ];
    let entries = Array::of1(&entry(0, &object(&params)));
    for (index, access) in access.iter().enumerate() {
        let kind = match access {
            Access::Read => "read-only-storage",
            Access::ReadWrite => "storage",
            Access::Texels => return None,
        };
        entries.push(&entry(index + 1, &object(&[("type", &kind.into())])));
    }
    Some(entries.into())
}

fn entry(binding: usize, buffer: &JsValue) -> JsValue {
    object(&[
        ("binding", &(binding as u32).into()),
        ("visibility", &COMPUTE.into()),
        ("buffer", buffer),
    ])
}

fn object(fields: &[(&str, &JsValue)]) -> JsValue {
    let object = Object::new();
    for (name, value) in fields {
        let is_set = Reflect::set(&object, &(*name).into(), value);
        assert!(is_set.is_ok(), "an object of our own takes fields");
    }
    object.into()
}
