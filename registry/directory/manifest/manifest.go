// Package manifest decodes Kubernetes objects from files: YAML or JSON, several to a file, strictly decoded, defaulted
// and validated by Kubernetes' own rules. Every fault has file, line and field: its reader has an editor open.
//
// A Decoder is safe for concurrent use. This package reads and watches no files: its parent does.
package manifest

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"sigs.k8s.io/yaml"

	"github.com/fairlead-proxy/fairlead/registry/policy"
)

// Object is one object of a file.
type Object struct {
	// Value is a *v1.APIService, *v1.Service, *v1.EndpointSlice, *v1.ConfigMap, *v1.Secret, *v1.ClusterRole or
	// *v1.ClusterRoleBinding, defaulted, valid from Decode; or a *policy.Policy, which registry validates: see FaultAt.
	Value interface {
		runtime.Object
		metav1.Object
	}
	// File is the name that was passed to Decode, and Line the line at which it begins, from 1.
	File string
	Line int
	// Wrong are the faults of a Policy's fields that are unknown or there twice: registry uses the rest, if it must.
	Wrong []Fault

	kind string    // of Value
	doc  *document // of a Policy
	at   string    // its path there
}

// FaultAt makes a fault of a field of a Policy.
func (o *Object) FaultAt(path, message string) Fault { return o.doc.fault(o.at+path, message) }

// Fault makes a fault about conflicting claims of the object.
func (o *Object) Fault(why string) Fault {
	return Fault{File: o.File, Line: o.Line, Field: "metadata.name", Message: "metadata.name: " + o.Name() + ": " + why}
}

// Fault is one fault of a file.
type Fault struct {
	File    string // the name that was passed to Decode
	Line    int    // from 1. Zero means the whole file
	Field   string // the path of the field, such as spec.service.port. Empty means the whole document
	Message string // describes the fault. It begins with Field if that is set
	Foreign string // the kind of an object that is not used here, but may be valid. Empty: a fault
	Note    bool   // it is no fault: two sources have the object, and Message says which counts
}

// String formats a fault as compilers do.
func (f Fault) String() string {
	if f.Line == 0 {
		return f.File + ": " + f.Message
	}
	return fmt.Sprintf("%s:%d: %s", f.File, f.Line, f.Message)
}

// Decoder reads objects.
type Decoder struct {
	Namespace string // set on objects that need one, as by kubectl. Empty means that they are refused

	scheme *runtime.Scheme
	strict runtime.Decoder
}

// NewDecoder makes a decoder.
func NewDecoder() *Decoder {
	scheme := runtime.NewScheme()
	all := runtime.NewSchemeBuilder(apiregistration.AddToScheme, apiregistrationv1.AddToScheme, corev1.AddToScheme,
		discoveryv1.AddToScheme, rbacv1.AddToScheme, policy.AddToScheme)
	utilruntime.Must(all.AddToScheme(scheme)) // it fails only for types that exclude each other
	codecs := serializer.NewCodecFactory(scheme, serializer.EnableStrict)
	return &Decoder{scheme: scheme, strict: codecs.UniversalDeserializer()}
}

// IsFile reports whether a file of this name is read as manifests.
func IsFile(name string) bool {
	return slices.Contains([]string{".yaml", ".yml", ".json"}, filepath.Ext(name))
}

const maxFile = 4 << 20 // a List of all APIServices of a large cluster has 2 MiB

// Read reads a file, unless it is too large.
func Read(from io.Reader) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(from, maxFile+1))
	if err == nil && len(data) > maxFile {
		err = fmt.Errorf("larger than %d bytes", maxFile)
	}
	return data, err
}

const maxFaults = 20  // of a file that are reported: a reader fixes the first ones and tries again
const maxStrict = 100 // unknown fields that the decoder tells of an object: where the next ones are is not known

// Decode decodes all objects of a file. If there is a fault, it returns the faults and no objects.
func (d *Decoder) Decode(file string, data []byte) ([]Object, []Fault) {
	objects, faults := d.DecodeGood(file, data)
	lines := make(map[string]int, len(objects)) // :: name → line
	for _, o := range objects {
		name := o.Name()
		if line, taken := lines[name]; taken {
			faults = append(faults, o.Fault(fmt.Sprintf("is already at line %d", line)))
			continue
		}
		lines[name] = o.Line
	}
	if len(faults) > 0 {
		return nil, faults[:min(len(faults), maxFaults)]
	}
	return objects, nil
}

// DecodeGood decodes the objects that can be, and returns all faults, but those of duplicates.
func (d *Decoder) DecodeGood(file string, data []byte) (objects []Object, faults []Fault) {
	for _, doc := range split(data) {
		doc.file = file
		found, wrong := d.document(doc)
		objects, faults = append(objects, found...), append(faults, wrong...)
	}
	return objects, faults
}

func (d *Decoder) document(doc *document) ([]Object, []Fault) {
	if doc.swells() {
		return nil, []Fault{doc.syntaxFault(fmt.Errorf("with its aliases it is larger than %d bytes", maxFile))}
	}
	raw, err := yaml.YAMLToJSONStrict(doc.text)
	if err != nil && strings.Contains(err.Error(), "Unicode character escape") && json.Valid(doc.text) {
		raw, err = doc.text, nil // with surrogates (\ud83d\ude00), as Python writes JSON: YAML has none
	}
	if err == nil && !utf8.Valid(doc.text) { // but UTF-16, whose markers split does not see
		err = errors.New("it is not UTF-8")
	}
	if err != nil {
		return nil, []Fault{doc.syntaxFault(err)}
	}
	if string(raw) == "null" {
		return nil, nil // nothing but comments
	}
	return d.value(raw, doc, "")
}

// value decodes one object from its JSON. At is its path in the document, empty for all of it.
func (d *Decoder) value(raw []byte, doc *document, at string) ([]Object, []Fault) {
	var object Object
	value, kind, err := d.strict.Decode(raw, nil, nil)
	if err != nil {
		faults := doc.decodeFaults(err, at)
		if runtime.IsNotRegisteredError(err) && kind != nil && !d.scheme.IsGroupRegistered(kind.Group) {
			faults[0].Foreign = kind.Kind
		}
		if _, usable := value.(*policy.Policy); !usable || len(faults) >= maxStrict {
			return nil, faults
		}
		object.Wrong = faults
	}
	d.scheme.Default(value)
	setDefaults(value)
	object.kind, object.File = kind.Kind, doc.file
	var wrong violations
	switch o := value.(type) {
	case *corev1.List:
		return d.list(o, doc, at)
	case *apiregistrationv1.APIService:
		object.Value = o
		wrong.apiService(o)
	case *corev1.Service:
		object.Value, o.Namespace = o, cmp.Or(o.Namespace, d.Namespace)
		wrong.service(o)
	case *discoveryv1.EndpointSlice:
		object.Value, o.Namespace = o, cmp.Or(o.Namespace, d.Namespace)
		wrong.slice(o)
	case *corev1.ConfigMap:
		object.Value, o.Namespace = o, cmp.Or(o.Namespace, d.Namespace)
		wrong.data(&o.ObjectMeta, "data", "binaryData", o.Data, o.BinaryData, false)
	case *corev1.Secret:
		object.Value, o.Namespace = o, cmp.Or(o.Namespace, d.Namespace)
		wrong.data(&o.ObjectMeta, "stringData", "data", o.StringData, o.Data, true)
	case *rbacv1.ClusterRole:
		object.Value = o
		wrong.role(o)
	case *rbacv1.ClusterRoleBinding:
		object.Value = o
		wrong.binding(o)
	case *policy.Policy:
		o.Name = cmp.Or(o.Name, "policy")
		object.Value, object.doc, object.at = o, doc, at
	default:
		fault := doc.fault(at+"kind", fmt.Sprintf("%s is not read from a directory: only APIService, Service, "+
			"EndpointSlice, ConfigMap, Secret, ClusterRole, ClusterRoleBinding and List are", kind.Kind))
		fault.Foreign = kind.Kind
		return nil, []Fault{fault}
	}
	var faults []Fault
	for _, e := range wrong[:min(len(wrong), maxFaults)] { // each looks for its line
		faults = append(faults, doc.fault(at+e.Field, e.ErrorBody()))
	}
	object.Line = doc.lineOf(strings.TrimSuffix(at, "."))
	return []Object{object}, faults
}

// list decodes the items of a List, as kubectl get -o yaml writes them.
func (d *Decoder) list(l *corev1.List, doc *document, at string) (objects []Object, faults []Fault) {
	if at != "" {
		return nil, []Fault{doc.fault(at+"kind", "a List in a List is not read")}
	}
	for i := range l.Items {
		found, wrong := d.value(l.Items[i].Raw, doc, fmt.Sprintf("items[%d].", i))
		objects, faults = append(objects, found...), append(faults, wrong...)
	}
	return objects, faults
}

// Name returns kind, namespace and name of an object, such as "Service kube-system/metrics".
func (o Object) Name() string {
	return o.kind + " " + strings.TrimPrefix(o.Value.GetNamespace()+"/"+o.Value.GetName(), "/")
}

// cause returns the innermost error, which is the one without the decoder's context.
func cause(err error) error {
	for inner := err; inner != nil; inner = errors.Unwrap(err) {
		err = inner
	}
	return err
}
