#include "base/log.h"

int main() {
  pagoda::start_log("info");
  return 0;
}
