// events.h in a build without CUDA.
#include "machine/cuda/events.h"

namespace attune::cuda {
namespace {

Status none() { return Status::no("this build of attune has no GPU code: it was left out, or nvcc was not there"); }

}  // namespace

Status facts_of(int, Facts&) { return none(); }
Status fill(void*, unsigned char, size_t, void*) { return none(); }
Status copy_inside(void*, const void*, size_t, void*) { return none(); }
Status launch_nothing(void*) { return none(); }
Status release_kept_lines() { return none(); }
Marks::~Marks() = default;
Status Marks::open(int, int) { return none(); }
Status Marks::set(int, void*) { return none(); }
Status Marks::between(int, int, double&) const { return none(); }
Gate::~Gate() = default;
Status Gate::open(int) { return none(); }
Status Gate::hold(void*) { return none(); }
void Gate::release() {}
bool Gate::gave_up() const { return false; }
Ticks::~Ticks() = default;
Status Ticks::open(int) { return none(); }
Status Ticks::set(int, void*) { return none(); }
double Ticks::megahertz() const { return 0; }
Graph::~Graph() = default;
Status Graph::begin(void*) { return none(); }
Status Graph::end(void*) { return none(); }
Status Graph::launch(void*) const { return none(); }

}  // namespace attune::cuda
