#include "module.h"

#include <vector>

namespace pointgrad {

static std::vector<Definer>& definers() {
  static std::vector<Definer> list;
  return list;
}

AddKernels::AddKernels(Definer definer) { definers().push_back(definer); }

}  // namespace pointgrad

NB_MODULE(_native, module) {
  for (auto define : pointgrad::definers()) define(module);
}
