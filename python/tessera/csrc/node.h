/* node.h: nodes of torch's autograd graph like those of its own operators. They are used rather than a
 * torch::autograd::Function, which torch.func refuses. */
#pragma once

#include <torch/csrc/autograd/VariableTypeUtils.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include "product.h"

/* Compiled autograd: its interface is that of torch's own nodes, and is used in the versions it was tried with. */
#define TESSERA_COMPILED_AUTOGRAD TESSERA_TORCH_AT_LEAST(2, 11)
#if TESSERA_COMPILED_AUTOGRAD
#include <torch/csrc/dynamo/compiled_autograd.h>
#endif

namespace tessera {

/* A node is held by std::shared_ptr, in newer versions of torch by its own counter. */
using NodePointer = decltype(torch::autograd::Edge::function);

template <class Made, class... Arguments> static NodePointer make_node(Arguments &&...arguments) {
    if constexpr (std::is_same<NodePointer, std::shared_ptr<torch::autograd::Node>>::value)
        return NodePointer(new Made(std::forward<Arguments>(arguments)...), [](auto *node) { deleteNode(node); });
    else
        return c10::make_intrusive<Made>(std::forward<Arguments>(arguments)...);
}

#if TESSERA_COMPILED_AUTOGRAD
/* Puts a call of `function`, on these gradients and arguments, into the compiler's graph. */
using PackedFunction = torch::autograd::variable_list(const torch::autograd::variable_list &gradients,
                                                      const std::vector<c10::IValue> &arguments);
inline torch::autograd::variable_list apply_in_graph(const torch::autograd::Node &node,
                                                     torch::dynamo::autograd::SwapSavedVariables &saved,
                                                     PackedFunction *function,
                                                     const torch::autograd::variable_list &gradients,
                                                     torch::dynamo::autograd::PackedArgs &&packed) {
    const std::vector<c10::IValue> arguments = std::move(packed).vec();
    std::vector<at::TypePtr> types;
    for (const c10::IValue &argument : arguments)
        types.push_back(argument.isTensor() ? at::TensorType::get() : argument.type());
    const auto &compiler = torch::dynamo::autograd::getPyCompilerInterface();
    const std::string bound = compiler->bind_function(saved.get_py_compiler(), node.name(), function, types, true,
                                                      true);
    return compiler->call_function(
        saved.get_py_compiler(), "apply_functional", bound, gradients, arguments,
        torch::dynamo::autograd::IValuePacker<std::vector<std::optional<torch::autograd::InputMetadata>>>::pack(
            torch::dynamo::autograd::get_input_metadata(node.next_edges())));
}
#endif

} // namespace tessera
