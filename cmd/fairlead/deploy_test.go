package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	appsv1 "k8s.io/api/apps/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"

	"github.com/fairlead-proxy/fairlead/tests/must"
)

// Every overlay with every set of components either renders a command line that serve accepts, with
// each component's flags, or is refused with a message.
func TestEveryCombination(t *testing.T) {
	t.Parallel() // kustomize is slow
	disk := filesys.MakeFsInMemory()
	must.Do(t, filepath.WalkDir("../../deploy", func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return disk.WriteFile(strings.TrimPrefix(path, "../.."), data)
	}))
	components := []struct{ name, flag string }{
		{"entrypoint", "--publish-kubernetes-endpoints"}, {"audit", "--audit-log-path=-"}, {"write-status", "--write-status"}, {"events", "--emit-events"}, {"monitoring", ""},
	}
	for _, base := range []string{"overlays/control-plane", "overlays/load-balancer", "base"} {
		for set := range 1 << len(components) {
			own := "resources: [../deploy/" + base + "]\ncomponents:\n"
			name := base
			var flags []string
			for i, c := range components {
				if set&(1<<i) != 0 {
					own += "  - ../deploy/components/" + c.name + "\n"
					name += " " + c.name
					flags = append(flags, c.flag)
				}
			}
			if base == "base" {
				own += "  - ../deploy/components/static-pod\n"
			}
			if !strings.Contains(own, "  - ") {
				own = strings.TrimSuffix(own, "components:\n")
			}
			must.Do(t, disk.WriteFile("/own/kustomization.yaml", []byte(own)))
			built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(disk, "/own")
			if strings.Contains(name, "load-balancer entrypoint") {
				if err == nil || !strings.Contains(err.Error(), "the component entrypoint is for control-plane nodes") {
					t.Errorf("%s: error %v", name, err)
				}
				continue
			}
			if err != nil {
				t.Errorf("%s: %v", name, err)
				continue
			}
			text := must.Get(built.AsYaml())(t)
			for _, fault := range wrongWith(string(text), base, flags) {
				t.Errorf("%s: %s", name, fault)
			}
		}
	}
}

// wrongWith checks the rendered manifests: the pods' arguments, their mounts, and the subjects of
// their bindings.
func wrongWith(text, base string, flags []string) (faults []string) {
	pods := 0
	for document := range strings.SplitSeq(text, "\n---\n") {
		var kind struct{ Kind string }
		_ = yaml.Unmarshal([]byte(document), &kind)
		switch kind.Kind {
		case "DaemonSet", "Deployment":
			pods++
			var o appsv1.Deployment // a DaemonSet has the same template
			if err := yaml.Unmarshal([]byte(document), &o); err != nil {
				return []string{err.Error()}
			}
			c := o.Spec.Template.Spec.Containers[0]
			for _, want := range flags {
				if want != "" && !slices.Contains(c.Args, want) {
					faults = append(faults, "there is no "+want)
				}
			}
			faults = append(faults, turnedDown(c.Args)...)
			for _, v := range o.Spec.Template.Spec.Volumes {
				if v.HostPath != nil && *v.HostPath.Type != "File" {
					faults = append(faults, v.HostPath.Path+" is mounted, which is more than a file")
				}
			}
		case "RoleBinding", "ClusterRoleBinding":
			var o rbacv1.RoleBinding
			if err := yaml.Unmarshal([]byte(document), &o); err != nil {
				return []string{err.Error()}
			}
			if static := base == "base"; static != (len(o.Subjects) == 2) || len(o.Subjects) > 2 {
				faults = append(faults, fmt.Sprintf("%s is bound to %v", o.Name, o.Subjects))
			}
		}
	}
	if (base == "base") != (pods == 0) {
		faults = append(faults, fmt.Sprintf("%d pods", pods))
	}
	return faults
}

// turnedDown returns serve's errors for args, except missing files, which exist only on a node.
func turnedDown(args []string) (faults []string) {
	o := &options{}
	flags := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	o.addFlags(flags)
	line := strings.NewReplacer("$(HOST_IP)", "192.0.2.1", "$(POD_IP)", "192.0.2.1").Replace(strings.Join(args[1:], "\n"))
	if err := flags.Parse(strings.Split(line, "\n")); err != nil {
		return []string{err.Error()}
	}
	err := o.validate()
	if err == nil {
		return nil
	}
	for fault := range strings.SplitSeq(err.Error(), "\n") {
		if !strings.Contains(fault, "no such file or directory") {
			faults = append(faults, fault)
		}
	}
	return faults
}
