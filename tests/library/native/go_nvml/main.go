// Shows GPU 0's memory and compute processes by NVIDIA's Go bindings of NVML: a line of JSON.
package main

import (
	"encoding/json"
	"log"
	"os"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

type process struct {
	Pid    uint32 `json:"pid"`
	Memory uint64 `json:"memory"`
}

type gpu struct {
	Total     uint64    `json:"total"`
	Used      uint64    `json:"used"`
	Processes []process `json:"processes"`
}

func must(result nvml.Return) {
	if result != nvml.SUCCESS {
		log.Fatal(nvml.ErrorString(result))
	}
}

func main() {
	must(nvml.Init())
	device, result := nvml.DeviceGetHandleByIndex(0)
	must(result)
	memory, result := device.GetMemoryInfo()
	must(result)
	listed, result := device.GetComputeRunningProcesses()
	must(result)
	found := gpu{Total: memory.Total, Used: memory.Used, Processes: []process{}}
	for _, each := range listed {
		found.Processes = append(found.Processes, process{each.Pid, each.UsedGpuMemory})
	}
	must(nvml.Shutdown())
	if err := json.NewEncoder(os.Stdout).Encode(found); err != nil {
		log.Fatal(err)
	}
}
